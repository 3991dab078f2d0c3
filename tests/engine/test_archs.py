"""Every architecture of tests/support/archs.py loads, computes, and takes what the dry run says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.context import Context
from llmrun.engine.model import Model
from llmrun.engine.probe.account import account
from llmrun.engine.probe.sizes import DeviceSizes, ProbedSizes
from llmrun.units import MIB

from tests.support.archs import ARCHS, hyper, write_arch

ROUNDING_BYTES = 0.005 * MIB + 1

SETTINGS: dict[str, dict[str, Any]] = {
    "256": {"n_ctx": 256},
    "1024, ubatch 64": {"n_ctx": 1024, "n_ubatch": 64},
    "3 unified": {"n_ctx": 1024, "n_seq": 3},
    "3 split, f32": {"n_ctx": 1024, "n_seq": 3, "kv_unified": False, "type_k": "f32", "type_v": "f32"},
    "no flash attention": {"n_ctx": 1024, "flash_attn": "off"},
    "q8_0, whole window": {"n_ctx": 1024, "type_k": "q8_0", "type_v": "q8_0", "swa_full": True},
}
MORE_SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": n_ctx, "n_ubatch": n_ubatch, "n_seq": n_seq, "kv_unified": unified, **kind}
    for n_ctx in (256, 1024, 4096)
    for n_ubatch in (32, 512)
    for n_seq, unified in ((1, True), (3, True), (3, False))
    for kind in (
        {"flash_attn": "on"},
        {"flash_attn": "off", "type_k": "q8_0"},
        {"flash_attn": "on", "type_k": "q4_0", "type_v": "q4_0"},
    )
]

WriteArch = Callable[[str], Path]


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> WriteArch:
    folder = tmp_path_factory.mktemp("archs")
    return lambda arch: write_arch(folder / f"{arch}.gguf", arch)


def sizes(path: Path, *, dry: bool, **params: Any) -> ProbedSizes:
    model = ModelParams(str(path), gpu_layers=0, use_mmap=False)
    return account([path], model, ContextParams(**params), dry=dry)


@pytest.mark.parametrize("arch", ARCHS)
def test_it_loads_and_computes(path_of: WriteArch, arch: str) -> None:
    """The log's cache blocks are the account's bytes, rounded."""
    path = path_of(arch)
    model = Model(
        ModelParams(str(path), gpu_layers=0),
        extra_bufts=False,
        progress=lambda _: None,
        cancelled=threading.Event(),
    )
    context = Context(model, ContextParams(n_ctx=512, n_seq=2, kv_unified=False))
    blocks = context.cache_blocks
    assert context.prefill(0, range(20)) == "ok"
    assert context.decode([(0, 1)]) == "ok"
    context.close()
    model.close()
    (cpu,) = sizes(path, dry=True, n_ctx=512, n_seq=2, kv_unified=False).devices
    states = [block.size_bytes for block in blocks if block.kind == "recurrent"]
    caches = [block.size_bytes for block in blocks if block.kind != "recurrent"]
    assert cpu.recurrent_bytes == pytest.approx(sum(states), abs=ROUNDING_BYTES)
    assert cpu.kv_bytes == pytest.approx(sum(caches), abs=ROUNDING_BYTES * max(1, len(caches)))
    assert cpu.kv_bytes + cpu.recurrent_bytes > 0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_dry_run_equals_a_load(path_of: WriteArch, arch: str, setting: str) -> None:
    path, params = path_of(arch), SETTINGS[setting]
    assert sizes(path, dry=True, **params) == sizes(path, dry=False, **params)


@pytest.mark.slow
@pytest.mark.parametrize("params", MORE_SETTINGS, ids=str)
def test_every_dry_run_equals_a_load(path_of: WriteArch, params: dict[str, Any]) -> None:
    same_types = params.get("type_k") == params.get("type_v")
    for arch in ARCHS if same_types else sorted(set(ARCHS) - {"deepseek2"}):  # MLA has one type only
        path = path_of(arch)
        assert sizes(path, dry=True, **params) == sizes(path, dry=False, **params), arch


def test_state_is_a_matter_of_sequences_not_of_context(path_of: WriteArch) -> None:
    """4 bytes x layers x ((d_conv - 1) x (d_inner + 2 groups x d_state) + d_state x d_inner) a sequence."""
    h = hyper("granitehybrid")
    slot = 4 * 2 * ((h.d_conv - 1) * (h.d_inner + 2 * h.n_group * h.d_state) + h.d_state * h.d_inner)
    path = path_of("granitehybrid")
    for n_ctx, n_seq in ((256, 1), (2048, 1), (256, 5)):
        (cpu,) = sizes(path, dry=True, n_ctx=n_ctx, n_seq=n_seq).devices
        assert cpu.recurrent_bytes == slot * n_seq
        assert cpu.kv_bytes == n_ctx * 2 * h.n_head_kv * h.head_size * 2  # one layer of attention, f16


def test_the_latent_cache_has_keys_only(path_of: WriteArch) -> None:
    h = hyper("deepseek2")
    (cpu,) = sizes(path_of("deepseek2"), dry=True, n_ctx=512).devices
    assert cpu.kv_bytes == 512 * h.n_layer * (h.kv_rank + h.rot) * 2


def test_prediction_layers_take_nothing(tmp_path: Path) -> None:
    with_one = sizes(write_arch(tmp_path / "a.gguf", "glm4moe", n_layer=4, n_predict=1), dry=True, n_ctx=256)
    without = sizes(write_arch(tmp_path / "b.gguf", "glm4moe", n_layer=3, n_predict=0), dry=True, n_ctx=256)
    assert with_one.devices == without.devices


@pytest.mark.parametrize("arch", ARCHS)
def test_tensors_and_buffers_agree(path_of: WriteArch, arch: str) -> None:
    """A buffer is its tensors, each padded to 32 bytes."""
    (cpu,) = sizes(path_of(arch), dry=True, n_ctx=256).devices
    assert 0 <= cpu.buffer_bytes + cpu.repack_bytes - cpu.weights_bytes < 32 * 100


def test_a_device_that_holds_nothing(path_of: WriteArch) -> None:
    assert sizes(path_of("llama"), dry=True, n_ctx=256).on("CUDA0") == DeviceSizes("CUDA0")
