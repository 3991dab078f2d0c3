"""Compute buffers of GPUs, in whose place are the engine's own servers: pipelines, a last layer alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.probe.sizes import probe_devices, probe_sizes
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.numbers import from_numbers
from llmrun.memory.placement import place
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.use import device_use

from tests.support.archs import write_full_size
from tests.support.rpc import rpc_server

GIB = 1 << 30
DENSE = from_numbers(layers=4, kv_heads=2, head_dim=32, params=1e8)
CPU = DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB)
GPUS = tuple(DeviceInfo(f"CUDA{i}", "gpu", 24 * GIB, 24 * GIB) for i in range(2))
ALL = MemoryPlan(gpu_layers=5)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with rpc_server() as first, rpc_server() as second:
        yield first, second


def computes(
    path: Path, servers: tuple[str, ...], params: Mapping[str, Any], gpu_layers: int = 999, **placed: Any
) -> list[tuple[str, int, int]]:
    """Device, bytes by formula, bytes by the engine."""
    model = ModelParams("", gpu_layers=gpu_layers, rpc=servers, **placed)
    engine = probe_sizes([path], model, ContextParams(**params))
    devices = [
        DeviceInfo(d.name, d.kind, d.free_bytes, d.total_bytes, d.pipelines) for d in probe_devices(servers)
    ]
    plan = MemoryPlan(gpu_layers=gpu_layers, **placed, **params)
    use = device_use(memory_facts(read_header(path)), plan, devices)
    pairs = zip(use.placement.devices, use.buckets, strict=True)
    return [(d.name, held.compute_bytes, engine.on(d.name).compute_bytes) for d, held in pairs]


@pytest.mark.parametrize("name", ["8B dense", "27B sliding window", "671B MLA", "80B hybrid"])
@pytest.mark.parametrize(
    "params", [{"n_ctx": 8192}, {"n_ctx": 16384, "n_ubatch": 256, "flash_attn": "off"}], ids=["8k", "16k"]
)
def test_a_pipeline(tmp_path: Path, servers: tuple[str, str], name: str, params: dict[str, Any]) -> None:
    path = write_full_size(tmp_path / "m.gguf", name)
    params = {"flash_attn": "on"} | params
    rel = 0.001 if name in ("8B dense", "27B sliding window") else 0.1
    for device, formula, engine in computes(path, servers, params):
        assert formula == pytest.approx(engine, rel=rel), device


@pytest.mark.parametrize(
    ("name", "placed"),
    [
        ("8B dense", {}),
        ("27B sliding window", {}),
        ("30B MoE", {}),
        ("30B MoE", {"cpu_moe": True}),
        ("671B MLA", {"cpu_moe": True}),
    ],
    ids=str,
)
def test_a_second_gpu_that_goes_on_from_the_first(
    tmp_path: Path, servers: tuple[str, str], name: str, placed: dict[str, Any]
) -> None:
    """Not as a pipeline, since the first layers are the CPU's."""
    path = write_full_size(tmp_path / "m.gguf", name)
    params = {"n_ctx": 32768, "flash_attn": "on"}
    for device, formula, engine in computes(path, servers, params, gpu_layers=10, **placed):
        assert formula == pytest.approx(engine, rel=0.01), device


@pytest.mark.parametrize("name", ["120B MoE", "80B hybrid"])
def test_a_last_layer_that_runs_on_all_tokens(tmp_path: Path, servers: tuple[str, str], name: str) -> None:
    """Nothing but it and the output is on the GPU, so that nothing else can hide its size."""
    path = write_full_size(tmp_path / "m.gguf", name)
    params = {"n_ctx": 8192, "flash_attn": "on"}
    for device, formula, engine in computes(path, servers[:1], params, gpu_layers=2):
        assert formula == pytest.approx(engine, rel=0.1), device


@pytest.mark.parametrize(
    ("plan", "devices", "expected"),
    [
        (ALL, (CPU, *GPUS), True),
        (replace(ALL, tensor_split=(1.0, 0.0)), (CPU, *GPUS), True),
        (ALL, (CPU, GPUS[0]), False),
        (replace(ALL, gpu_layers=4), (CPU, *GPUS), False),
        (replace(ALL, split_mode="none"), (CPU, *GPUS), False),
        (replace(ALL, offload_kqv=False), (CPU, *GPUS), False),
        (replace(ALL, cpu_moe=True), (CPU, *GPUS), False),
        (replace(ALL, n_cpu_moe=1), (CPU, *GPUS), False),
        (replace(ALL, overrides=(("ffn", "CPU"),)), (CPU, *GPUS), False),
        (ALL, (CPU, GPUS[0], replace(GPUS[1], pipelines=False)), False),
        (ALL, (CPU, *GPUS, DeviceInfo("BLAS", "accel", 0, 0, pipelines=False)), False),
    ],
)
def test_when_there_is_a_pipeline(plan: MemoryPlan, devices: tuple[DeviceInfo, ...], expected: bool) -> None:
    assert place(DENSE, plan, devices).pipelined is expected


def test_a_pipeline_takes_more() -> None:
    whole = device_use(DENSE, ALL, (CPU, *GPUS)).buckets
    slow = tuple(replace(gpu, pipelines=False) for gpu in GPUS)
    plain = device_use(DENSE, ALL, (CPU, *slow)).buckets
    assert all(a.compute_bytes > b.compute_bytes for a, b in zip(whole, plain, strict=True))


def test_servers_can_pipeline(servers: tuple[str, str]) -> None:
    assert {d.name: d.pipelines for d in probe_devices(servers)} == {
        "RPC0": True,
        "RPC1": True,
        "CPU": False,
    }
