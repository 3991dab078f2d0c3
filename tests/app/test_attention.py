"""Cache types that are refused before loading, and those that keep attention off a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.memory import offload
from llmrun.app.memory.attention import attention_off_gpus
from llmrun.app.memory.host_memory import HostMemory
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import Device
from llmrun.engine.flash import AttentionShape, TypePair
from llmrun.errors import UsageError
from llmrun.gguf.facts import model_facts
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.placement import place
from llmrun.memory.plan import DeviceInfo
from llmrun.units import GIB

from tests.support.archs import write_arch, write_full_size

CPU = DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB)
GPUS = (DeviceInfo("CUDA0", "gpu", 64 * GIB, 64 * GIB), DeviceInfo("CUDA1", "gpu", 64 * GIB, 64 * GIB))
SAME = (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("f16", "f16"))
"""What a default CUDA build has kernels for."""


@pytest.mark.parametrize(
    ("arch", "shape", "types", "reason"),
    [
        ("llama", {}, {"type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
        ("llama", {"head_size": 48}, {"type_k": "q8_0"}, "K heads of 48"),
        ("llama", {"head_size": 48}, {"type_v": "q4_0"}, "V heads of 48"),
        ("deepseek2", {}, {"type_k": "q8_0"}, "one row"),
        ("deepseek2", {}, {"type_v": "bf16"}, "one row"),
    ],
)
def test_refused_before_anything_is_loaded(
    tmp_path: Path, arch: str, shape: dict[str, Any], types: dict[str, Any], reason: str
) -> None:
    header = read_header(write_arch(tmp_path / "m.gguf", arch, **shape))
    subject = offload.Subject((header,), model_facts(header))

    def plan(**params: Any) -> None:
        model, context = ModelParams("", gpu_layers=0), ContextParams(n_ctx=256, **params)
        offload.plan_load(subject, model, context, offload.Budget(), ctx_fixed=True)

    with pytest.raises(UsageError, match=reason):
        plan(**types)
    plan()
    plan(type_k="f32", type_v="f32", flash_attn="off")


class Devices:
    """Answers which types have kernels, and remembers what it was asked."""

    def __init__(self, **able: Sequence[TypePair]) -> None:
        self.able = able
        self.shapes: list[AttentionShape] = []

    def __call__(
        self, names: Sequence[str], shapes: Sequence[AttentionShape], pairs: Sequence[TypePair]
    ) -> Mapping[str, Sequence[TypePair]]:
        self.shapes += shapes
        return {name: [pair for pair in pairs if pair in self.able[name]] for name in names}


@pytest.fixture
def dense(tmp_path: Path) -> MemoryFacts:
    return memory_facts(read_header(write_full_size(tmp_path / "m.gguf", "8B dense")))


def warnings(facts: MemoryFacts, devices: Devices, layers: int = 99, **params: Any) -> list[str]:
    context = ContextParams(**({"flash_attn": "on"} | params))
    plan = memory_plan(facts, ModelParams("", gpu_layers=layers), context)
    return list(attention_off_gpus(facts, plan, context, place(facts, plan, (CPU, *GPUS)), devices))


def test_a_gpu_without_a_kernel_is_named_with_types_that_have_one(dense: MemoryFacts) -> None:
    devices = Devices(CUDA0=SAME, CUDA1=SAME)
    both = warnings(dense, devices, type_k="q5_1", type_v="q5_1")
    assert [line.split()[0] for line in both] == ["CUDA0", "CUDA1"]
    assert all("q5_1" in line and "--kv-type q8_0" in line for line in both)
    assert devices.shapes == [AttentionShape(32, 8, 128, 128)]
    assert warnings(dense, devices, type_k="q8_0", type_v="q8_0") == []
    (mixed,) = warnings(dense, Devices(CUDA0=[*SAME, ("q8_0", "f16")], CUDA1=SAME), type_k="q8_0")
    assert mixed.startswith("CUDA1")


def test_where_nothing_moves_there_is_no_warning(dense: MemoryFacts) -> None:
    none = Devices(CUDA0=[], CUDA1=[])
    assert warnings(dense, none)
    assert warnings(dense, none, layers=0) == []
    assert warnings(dense, none, layers=1) == []  # the output alone
    assert warnings(dense, none, offload_kqv=False) == []
    assert warnings(dense, none, flash_attn="off") == []
    assert warnings(dense, none, flash_attn="auto", type_k="q5_1") == []  # the engine does without
    assert warnings(dense, none, flash_attn="auto", type_v="q5_1")  # it cannot


def test_a_load_onto_a_gpu_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense: MemoryFacts) -> None:
    header = read_header(tmp_path / "m.gguf")
    monkeypatch.setattr(offload, "host_memory", lambda: HostMemory(64 * GIB, 64 * GIB))
    card = Device("CUDA0", "a card", "gpu", 64 * GIB, 64 * GIB)
    monkeypatch.setattr(offload, "engine_devices", lambda: (card,))
    answer: Callable[..., object] = Devices(CUDA0=SAME)
    monkeypatch.setattr(offload, "flash_attention_types", answer)
    subject = offload.Subject((header,), model_facts(header))

    def plan(kv_type: str, layers: int | str) -> tuple[str, ...]:
        context = ContextParams(flash_attn="on", type_k=kv_type, type_v=kv_type)
        model = ModelParams("", gpu_layers=layers)  # type: ignore[arg-type]
        return offload.plan_load(subject, model, context, offload.Budget(), ctx_fixed=True).warnings

    for layers in ("auto", "all", 7):
        assert len(plan("q4_1", layers)) == 1
        assert plan("q4_0", layers) == ()
    assert plan("q4_1", 0) == ()
