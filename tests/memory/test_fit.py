"""Searches: what they find fits, and one step more does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import refusal
from llmrun.memory.estimate import estimate
from llmrun.memory.fit import MIN_CTX, max_ctx, max_gpu_layers, plan_offload
from llmrun.memory.numbers import from_numbers
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.quants import QUANT_BITS, bits_per_weight, requantized
from llmrun.memory.use import device_use
from llmrun.memory.ways import ways_out

from tests.support.archs import write_full_size

GIB = 1 << 30
DENSE = from_numbers(layers=32, kv_heads=8, head_dim=128, params=8e9, n_ctx_train=131_072)


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> MemoryFacts:
    path: Path = tmp_path_factory.mktemp("fit") / "moe.gguf"
    return memory_facts(read_header(write_full_size(path, "30B MoE")))


def machine(host_gib: float, *gpu_gib: float) -> list[DeviceInfo]:
    host = DeviceInfo("CPU", "cpu", int(host_gib * GIB), int(host_gib * GIB))
    gpus = (DeviceInfo(f"CUDA{i}", "gpu", int(g * GIB), int(g * GIB)) for i, g in enumerate(gpu_gib))
    return [host, *gpus]


def test_the_longest_context() -> None:
    devices = machine(16)
    longest = max_ctx(DENSE, MemoryPlan(), devices, GIB)
    assert longest % 256 == 0
    assert device_use(DENSE, MemoryPlan(n_ctx=longest), devices).fits(GIB)
    assert not device_use(DENSE, MemoryPlan(n_ctx=longest + 256), devices).fits(GIB)
    assert max_ctx(DENSE, MemoryPlan(), machine(500), GIB) == 131_072
    assert max_ctx(DENSE, MemoryPlan(), machine(4), GIB) == 0


def test_the_most_layers() -> None:
    devices = machine(64, 4)
    count = max_gpu_layers(DENSE, MemoryPlan(), devices, GIB)
    assert 0 < count < DENSE.n_slots
    assert device_use(DENSE, MemoryPlan(gpu_layers=count), devices).gpus_fit(GIB)
    assert not device_use(DENSE, MemoryPlan(gpu_layers=count + 1), devices).gpus_fit(GIB)
    assert max_gpu_layers(DENSE, MemoryPlan(), machine(64), GIB) == 0
    assert max_gpu_layers(DENSE, MemoryPlan(), machine(64, 80), GIB) == 33


def test_all_layers_where_they_fit() -> None:
    plan = plan_offload(DENSE, MemoryPlan(), machine(16, 12))
    assert (plan.kind, plan.plan.gpu_layers, plan.fits) == ("all", 33, True)


def test_experts_leave_the_gpu_before_layers_do(moe: MemoryFacts) -> None:
    plan = plan_offload(moe, MemoryPlan(), machine(64, 12))
    assert (plan.kind, plan.plan.gpu_layers, plan.fits) == ("experts_on_cpu", moe.n_slots, True)
    assert 0 < plan.plan.n_cpu_moe < len(moe.layers)
    less = replace(plan.plan, n_cpu_moe=plan.plan.n_cpu_moe - 1)
    assert not device_use(moe, less, machine(64, 12)).fits(GIB)


def test_fewer_layers_where_even_that_is_too_much(moe: MemoryFacts) -> None:
    plan = plan_offload(moe, MemoryPlan(), machine(64, 2))
    assert plan.kind == "layers"
    assert plan.plan.cpu_moe
    assert 0 < plan.plan.gpu_layers < moe.n_slots
    dense = plan_offload(DENSE, MemoryPlan(), machine(64, 4))
    assert (dense.kind, dense.fits) == ("layers", True)
    assert dense.plan.gpu_layers == max_gpu_layers(DENSE, MemoryPlan(), machine(64, 4), GIB)


def test_the_context_shrinks_last_and_only_where_it_may() -> None:
    devices = machine(10, 6)
    wanted = MemoryPlan(n_ctx=131_072)
    fixed = plan_offload(DENSE, wanted, devices, ctx_fixed=True)
    assert (fixed.kind, fixed.fits, fixed.plan.n_ctx) == ("too_large", False, 131_072)
    free = plan_offload(DENSE, wanted, devices, ctx_fixed=False)
    assert free.fits
    assert free.ctx_shrunk
    assert MIN_CTX <= free.plan.n_ctx < 131_072
    longer = replace(wanted, n_ctx=free.plan.n_ctx + 256)
    assert not plan_offload(DENSE, longer, devices, ctx_fixed=True).fits
    small = plan_offload(DENSE, replace(wanted, n_ctx=8192), devices, ctx_fixed=False)
    assert not small.ctx_shrunk


def test_nothing_fits_on_a_tiny_machine() -> None:
    plan = plan_offload(DENSE, MemoryPlan(n_ctx=65_536), machine(2, 1), ctx_fixed=False)
    assert (plan.kind, plan.fits) == ("too_large", False)


def test_a_host_alone() -> None:
    plan = plan_offload(DENSE, MemoryPlan(), machine(16))
    assert (plan.kind, plan.plan.gpu_layers, plan.fits) == ("cpu", 0, True)


@pytest.mark.parametrize("auto_layers", [True, False])
def test_ways_out_work(auto_layers: bool) -> None:
    devices = machine(9)
    plan = MemoryPlan(n_ctx=32_768)
    assert not device_use(DENSE, plan, devices).fits(GIB)
    ways = {way.kind: way for way in ways_out(DENSE, plan, devices, auto_layers=auto_layers)}
    assert set(ways) == {"quantization", "kv_type", "context"}
    smaller = requantized(DENSE, QUANT_BITS[ways["quantization"].value])
    assert smaller is not None
    use = device_use(smaller, plan, devices)
    assert use.fits(GIB)
    assert ways["quantization"].sum_bytes == sum(b.sum_bytes for b in use.buckets)
    kv = replace(plan, type_k=ways["kv_type"].value, type_v=ways["kv_type"].value)
    assert device_use(DENSE, kv, devices).fits(GIB)
    shorter = replace(plan, n_ctx=int(ways["context"].value))
    assert device_use(DENSE, shorter, devices).fits(GIB)
    assert not device_use(DENSE, replace(shorter, n_ctx=shorter.n_ctx + 256), devices).fits(GIB)


def test_ways_that_the_engine_refuses_are_not_named() -> None:
    odd = from_numbers(layers=32, kv_heads=8, head_dim=80, params=5e9, n_ctx_train=131_072)
    plan = MemoryPlan(n_ctx=65_536)
    ways = ways_out(odd, plan, machine(8))
    assert {way.kind for way in ways} == {"context"} | {w.kind for w in ways if w.kind == "quantization"}
    assert refusal(odd, replace(plan, type_k="q8_0", type_v="q8_0"))


def test_no_way_out_of_a_machine_too_small() -> None:
    assert ways_out(DENSE, MemoryPlan(), machine(1.5)) == ()


def test_requantizing() -> None:
    assert bits_per_weight(DENSE) == pytest.approx(QUANT_BITS["Q4_K_M"], rel=1e-4)
    assert requantized(DENSE, 8.5) is None
    smaller = requantized(DENSE, QUANT_BITS["Q2_K"])
    assert smaller is not None
    assert bits_per_weight(smaller) == pytest.approx(QUANT_BITS["Q2_K"], rel=1e-4)
    assert list(QUANT_BITS.values()) == sorted(QUANT_BITS.values(), reverse=True)


@pytest.mark.parametrize(
    ("devices", "n_ctx", "verdict"),
    [
        (machine(16), 8192, "fits"),
        (machine(16, 4), 8192, "partial"),
        (machine(12), 131_072, "partial"),
        (machine(2), 8192, "too_large"),
    ],
)
def test_verdicts(devices: list[DeviceInfo], n_ctx: int, verdict: str) -> None:
    report = estimate(DENSE, MemoryPlan(n_ctx=n_ctx, gpu_layers=33), devices)
    assert report.verdict == verdict
    assert all(d.fits for d in report.devices) == (verdict == "fits")


def test_a_report_adds_up() -> None:
    report = estimate(DENSE, MemoryPlan(n_ctx=20_000, gpu_layers=20), machine(16, 8), reserve_bytes=0)
    assert report.method == "formula"
    assert report.totals.sum_bytes == sum(d.use.sum_bytes for d in report.devices)
    assert report.totals.kv_bytes == report.n_ctx * report.kv_bytes_per_token == 20_224 * 131_072
    assert (report.max_ctx, report.max_gpu_layers) == (
        max_ctx(DENSE, report.plan, machine(16, 8), 0),
        max_gpu_layers(DENSE, report.plan, machine(16, 8), 0),
    )


def integrated(host_gib: float, gpu_gib: float) -> list[DeviceInfo]:
    (host,) = machine(host_gib)
    return [host, DeviceInfo("Vulkan0", "igpu", int(gpu_gib * GIB), int(gpu_gib * GIB))]


@pytest.mark.parametrize("gpu_layers", [0, 1, 16, 33])
def test_an_integrated_gpu_has_no_memory_of_its_own(gpu_layers: int) -> None:
    """Wherever the layers go, main memory must hold them all."""
    plan = MemoryPlan(gpu_layers=gpu_layers)
    total = sum(held.sum_bytes for held in device_use(DENSE, plan, integrated(64, 64)).buckets)
    enough, less = total / GIB, (total - 1) / GIB
    assert device_use(DENSE, plan, integrated(enough, 64)).fits(0)
    assert not device_use(DENSE, plan, integrated(less, 64)).fits(0)
    if gpu_layers:
        assert device_use(DENSE, plan, [machine(less)[0], *machine(1, 64)[1:]]).fits(0)  # a card of its own


def test_plans_for_an_integrated_gpu() -> None:
    plan = plan_offload(DENSE, MemoryPlan(), integrated(16, 16))
    assert (plan.kind, plan.fits) == ("all", True)
    assert plan_offload(DENSE, MemoryPlan(), integrated(4, 64)).kind == "too_large"
    assert max_gpu_layers(DENSE, MemoryPlan(), integrated(4, 64), GIB) < 33
    bounded = plan_offload(DENSE, MemoryPlan(), integrated(16, 4))  # it may use a part of main memory only
    assert (bounded.kind, bounded.fits) == ("layers", True)
    longest = max_ctx(DENSE, MemoryPlan(gpu_layers=33), integrated(16, 64), GIB)
    assert 0 < longest < max_ctx(DENSE, MemoryPlan(gpu_layers=33), machine(16, 64), GIB)
    assert all(way.sum_bytes + GIB <= 4 * GIB for way in ways_out(DENSE, MemoryPlan(), integrated(4, 64)))
