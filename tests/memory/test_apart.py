"""Compute buffers where weights or caches lie apart from their layers, by formula and by dry run.

Headers of full-size models; the engine's RPC server is the GPU, as it is, which leaves work to the CPU, or as
one that borrows like CUDA.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.probe.sizes import probe_devices, probe_sizes
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.estimate import estimate
from llmrun.memory.plan import DeviceInfo, MemoryPlan

from tests.support.archs import FULL_SIZE, write_full_size
from tests.support.borrowing import borrowing_compute
from tests.support.rpc import rpc_server

ALL = 999
MIXTURES = ("30B MoE", "120B MoE", "671B MLA", "80B hybrid")
PLACEMENTS: dict[str, dict[str, Any]] = {
    "experts on the CPU": {"gpu_layers": ALL, "cpu_moe": True},
    "experts of 10 layers": {"gpu_layers": ALL, "n_cpu_moe": 10},
    "one slot": {"gpu_layers": 1},
    "two slots": {"gpu_layers": 2},
    "three slots": {"gpu_layers": 3},
    "10 slots": {"gpu_layers": 10},
    "40 slots, experts of 10 layers": {"gpu_layers": 40, "n_cpu_moe": 10},
    "none": {"gpu_layers": 0},
    "all": {"gpu_layers": ALL},
}
CACHE_APART = {"offload_kqv": False}
CONTEXTS: dict[str, dict[str, Any]] = {
    "32k": {"n_ctx": 32768},
    "32k, cache apart": {"n_ctx": 32768} | CACHE_APART,
    "32k, cache apart, no flash attention": {"n_ctx": 32768, "flash_attn": "off"} | CACHE_APART,
    "8k, cache apart, q8_0": {"n_ctx": 8192, "type_k": "q8_0", "type_v": "q8_0"} | CACHE_APART,
    "32k in 4, cache apart": {"n_ctx": 32768, "n_seq": 4, "kv_unified": False} | CACHE_APART,
    "128k, ubatch 2048": {"n_ctx": 131072, "n_ubatch": 2048},
}
QUICK = [
    *((name, "experts on the CPU", "32k") for name in MIXTURES),
    ("120B MoE", "experts of 10 layers", "32k"),
    ("27B sliding window", "two slots", "32k"),
    ("30B MoE", "one slot", "32k"),
    *((name, "all", "32k, cache apart") for name in FULL_SIZE),
    ("671B MLA", "10 slots", "32k, cache apart"),
    ("120B MoE", "10 slots", "32k, cache apart, no flash attention"),
    ("30B MoE", "experts on the CPU", "32k, cache apart, no flash attention"),
]
ROUGH = ("80B hybrid", "experts on the CPU", "32k, cache apart, no flash attention")
"""The server has 14 % more than the formula says."""
COMMON = ("all", "10 slots", "experts on the CPU")
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
    for case in itertools.product(FULL_SIZE, PLACEMENTS, CONTEXTS)
    if (case[0] in MIXTURES or "experts" not in case[1]) and (case[2] == "32k" or case[1] in COMMON)
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rpc_server() as address:
        yield address


def by_formula(path: Path, server: str, gpu: str, plan: dict[str, Any]) -> dict[str, int]:
    devices = [DeviceInfo(d.name, d.kind, d.free_bytes, d.total_bytes) for d in probe_devices((server,))]
    named = [replace(d, name=gpu) if d.name == "RPC0" else d for d in devices]
    report = estimate(memory_facts(read_header(path)), MemoryPlan(**plan), named)
    assert not report.unmodelled
    return {d.device.name: d.use.compute_bytes for d in report.devices}


@pytest.mark.parametrize(("name", "placement", "context"), CASES)
def test_a_device_that_leaves_work_to_the_cpu(
    tmp_path: Path, server: str, name: str, placement: str, context: str
) -> None:
    path, placed = write_full_size(tmp_path / "m.gguf", name), PLACEMENTS[placement]
    asked = {"flash_attn": "on"} | CONTEXTS[context]
    engine = probe_sizes([path], ModelParams("", rpc=(server,), **placed), ContextParams(**asked))
    formula = by_formula(path, server, "RPC0", asked | placed)
    for device, size_bytes in formula.items():
        near = 0.15 if (name, placement, context) == ROUGH else 0.1
        assert size_bytes == pytest.approx(engine.on(device).compute_bytes, rel=near), device


@pytest.mark.parametrize(("name", "placement", "context"), CASES)
def test_a_device_that_borrows(tmp_path: Path, server: str, name: str, placement: str, context: str) -> None:
    path, placed = write_full_size(tmp_path / "m.gguf", name), PLACEMENTS[placement]
    asked = {"flash_attn": "on"} | CONTEXTS[context]
    engine = borrowing_compute(path, server, placed, asked)
    formula = by_formula(path, server, "CUDA0", asked | placed)
    assert formula["CPU"] == pytest.approx(engine["CPU"], rel=0.1)
    assert formula["CUDA0"] == pytest.approx(engine.get("RPC0", 0), rel=0.1)


def test_what_is_not_followed_is_said(tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_full_size(tmp_path / "m.gguf", "30B MoE")))
    devices = [DeviceInfo("CPU", "cpu", 1 << 50, 1 << 50), DeviceInfo("RPC0", "gpu", 1 << 50, 1 << 50)]

    def note(gpu_layers: int = ALL, **plan: Any) -> str:
        return estimate(facts, MemoryPlan(gpu_layers=gpu_layers, **plan), devices).unmodelled

    assert note(cpu_moe=True) == note(n_cpu_moe=3) == note(overrides=(("exps", "CPU"),)) == ""
    assert note(offload_kqv=False) == ""
    assert "attn_q" in note(overrides=((r"blk\.3\.attn_q\.", "CPU"),))
    assert "blk.5.ffn_" in note(overrides=((r"blk\.5\.ffn_up_exps", "CPU"),))
    assert "token_embd" in note(overrides=(("token_embd", "RPC0"),))
    assert "ffn_up" in note(gpu_layers=0, overrides=(("ffn_up_exps", "RPC0"),))
    assert note(gpu_layers=0, overrides=(("ffn_up_exps", "CPU"),)) == ""
