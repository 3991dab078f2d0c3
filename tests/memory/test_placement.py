"""Which device holds what: the engine's rules, by counting bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.errors import UsageError
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.numbers import from_numbers
from llmrun.memory.placement import gpus_of, place, place_weights
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.use import device_use

from tests.support.archs import write_arch
from tests.support.models import gemma_path, smollm2_path
from tests.support.tiny import write_tiny

GIB = 1 << 30
CPU = DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB)
GPU = DeviceInfo("CUDA0", "gpu", 24 * GIB, 24 * GIB)
SMALL = DeviceInfo("CUDA1", "gpu", 8 * GIB, 8 * GIB)
DENSE = from_numbers(layers=4, kv_heads=2, head_dim=32, params=1e8)


def slots(facts: MemoryFacts, plan: MemoryPlan, *devices: DeviceInfo) -> list[str]:
    placement = place(facts, plan, devices)
    return [placement.devices[i].name for i in placement.slots]


@pytest.mark.parametrize(
    ("gpu_layers", "expected"),
    [
        (0, ["CPU"] * 5),
        (1, ["CPU"] * 4 + ["CUDA0"]),
        (2, ["CPU"] * 3 + ["CUDA0"] * 2),
        (5, ["CUDA0"] * 5),
        (99, ["CUDA0"] * 5),
    ],
)
def test_layers_count_back_from_the_output(gpu_layers: int, expected: list[str]) -> None:
    assert slots(DENSE, MemoryPlan(gpu_layers=gpu_layers), CPU, GPU) == expected


def test_without_a_gpu_everything_is_on_the_host() -> None:
    assert slots(DENSE, MemoryPlan(gpu_layers=5), CPU) == ["CPU"] * 5
    assert slots(DENSE, MemoryPlan(gpu_layers=5), CPU, DeviceInfo("BLAS", "accel", 0, 0)) == ["CPU"] * 5


def test_several_gpus() -> None:
    everything = MemoryPlan(gpu_layers=5)
    by_memory = slots(DENSE, everything, CPU, GPU, SMALL)
    assert by_memory == ["CUDA0"] * 4 + ["CUDA1"]
    halves = slots(DENSE, replace(everything, tensor_split=(1, 1)), CPU, GPU, SMALL)
    assert halves == ["CUDA0"] * 3 + ["CUDA1"] * 2
    only = slots(DENSE, replace(everything, split_mode="none", main_gpu=1), CPU, GPU, SMALL)
    assert only == ["CUDA1"] * 5
    assert slots(DENSE, replace(everything, tensor_split=(0, 1)), CPU, GPU, SMALL) == ["CUDA1"] * 5


def test_order_of_devices() -> None:
    server = DeviceInfo("RPC0", "gpu", GIB, GIB)
    shared = DeviceInfo("Vulkan0", "igpu", GIB, GIB)
    assert [d.name for d in gpus_of([CPU, GPU, server, shared])] == ["RPC0", "CUDA0"]
    assert [d.name for d in gpus_of([CPU, shared])] == ["Vulkan0"]
    assert [d.name for d in gpus_of([CPU, shared, server])] == ["RPC0", "Vulkan0"]


@pytest.mark.parametrize("buffer", ["RPC1", "RPC0[here:2]"])
def test_rules_name_a_device_or_its_buffers(tmp_path: Path, buffer: str) -> None:
    """Each RPC server numbers its own devices from 0; the engine numbers those of all."""
    facts = memory_facts(read_header(write_tiny(tmp_path / "t.gguf", "llama")))
    servers = [DeviceInfo(f"RPC{i}", "gpu", GIB, GIB, buffer=f"RPC0[here:{i + 1}]") for i in (0, 1)]
    plan = MemoryPlan(gpu_layers=99, overrides=(("ffn_up", buffer),), tensor_split=(1, 0))
    placed = place_weights(facts, plan, place(facts, plan, [CPU, *servers]))
    assert {p.device for p in placed if "ffn_up" in p.weight.name} == {2}
    assert {p.device for p in placed if "ffn_down" in p.weight.name} == {1}
    unknown = replace(plan, overrides=(("ffn_up", "RPC2"),))
    with pytest.raises(UsageError, match="RPC2"):
        place_weights(facts, unknown, place(facts, unknown, [CPU, *servers]))


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no GPU 3"):
        place(DENSE, MemoryPlan(gpu_layers=1, split_mode="none", main_gpu=3), [CPU, GPU])


def test_weights_are_the_bytes_of_the_tensors(tmp_path: Path) -> None:
    header = read_header(write_tiny(tmp_path / "t.gguf", "llama"))
    facts = memory_facts(header)
    sizes = {t.name: t.size_bytes for t in header.tensors}
    for gpu_layers in (0, 1, 2, 5):
        use = device_use(facts, MemoryPlan(n_ctx=256, gpu_layers=gpu_layers), [CPU, GPU])
        host, gpu = (b.weights_bytes for b in use.buckets)
        assert host + gpu == sum(sizes.values())
        on_gpu = [f"blk.{il}." for il in range(5 - gpu_layers, 4)] + ["output"] * (gpu_layers > 0)
        assert gpu == sum(size for name, size in sizes.items() if name.startswith(tuple(on_gpu) or "?"))


@pytest.mark.parametrize("path", [smollm2_path, pytest.param(gemma_path, marks=pytest.mark.slow)])
def test_a_tied_embedding_is_copied_to_the_gpu(path) -> None:  # type: ignore[no-untyped-def]
    header = read_header(path())
    facts = memory_facts(header)
    total = sum(t.size_bytes for t in header.tensors)
    embedding = next(t.size_bytes for t in header.tensors if t.name == "token_embd.weight")
    alone = device_use(facts, MemoryPlan(), [CPU, GPU])
    assert [b.weights_bytes for b in alone.buckets] == [total, 0]
    offloaded = device_use(facts, MemoryPlan(gpu_layers=99), [CPU, GPU])
    assert [b.weights_bytes for b in offloaded.buckets] == [embedding, total]


def test_experts_on_the_cpu(tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_arch(tmp_path / "m.gguf", "qwen3moe")))
    experts = {il: sum(w.size_bytes for w in facts.weights if w.expert and w.slot == il) for il in range(2)}
    assert facts.is_moe
    assert min(experts.values()) > 0

    def on_gpu(**changes: object) -> int:
        plan = MemoryPlan(gpu_layers=99, **changes)  # type: ignore[arg-type]
        return device_use(facts, plan, [CPU, GPU]).buckets[1].weights_bytes

    assert on_gpu(cpu_moe=True) == on_gpu() - sum(experts.values())
    assert on_gpu(n_cpu_moe=1) == on_gpu() - experts[0]
    assert on_gpu(overrides=((r"blk\.1\.ffn_.*_exps", "CPU"),)) == on_gpu() - experts[1]


def test_overrides_name_a_device_and_are_patterns() -> None:
    placement = place(DENSE, MemoryPlan(gpu_layers=5), [CPU, GPU])
    with pytest.raises(UsageError, match="CUDA7"):
        place_weights(DENSE, MemoryPlan(overrides=(("blk", "CUDA7"),)), placement)
    with pytest.raises(UsageError, match="pattern"):
        place_weights(DENSE, MemoryPlan(overrides=(("(", "CPU"),)), placement)


@pytest.mark.parametrize(
    ("plan", "n_gpus"),
    [
        (MemoryPlan(tensor_split=(1, 1)), 1),
        (MemoryPlan(tensor_split=(1, 1)), 0),
        (MemoryPlan(split_mode="none", main_gpu=1), 1),
        (MemoryPlan(split_mode="none", main_gpu=1), 0),
        (MemoryPlan(split_mode="none", tensor_split=(1,)), 1),
    ],
)
def test_what_the_engine_would_refuse(plan: MemoryPlan, n_gpus: int) -> None:
    with pytest.raises(UsageError):
        place(DENSE, plan, [CPU, GPU][: 1 + n_gpus])


def test_experts_of_more_layers_than_there_are(tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_arch(tmp_path / "m.gguf", "qwen3moe")))
    all_of_them, beyond = (
        device_use(facts, MemoryPlan(gpu_layers=99, n_cpu_moe=n), [CPU, GPU])
        for n in (facts.n_layer_all, 2**31 - 1)
    )
    assert beyond == all_of_them


def test_caches_follow_their_layers_unless_kept_on_the_host() -> None:
    plan = MemoryPlan(n_ctx=1024, gpu_layers=3)
    host, gpu = device_use(DENSE, plan, [CPU, GPU]).buckets
    assert host.kv_bytes == gpu.kv_bytes == 2 * 1024 * 2 * 2 * 32 * 2
    host, gpu = device_use(DENSE, replace(plan, offload_kqv=False), [CPU, GPU]).buckets
    assert (host.kv_bytes, gpu.kv_bytes) == (4 * 1024 * 2 * 2 * 32 * 2, 0)


def test_prediction_layers_take_places_but_no_memory(tmp_path: Path) -> None:
    header = read_header(write_arch(tmp_path / "g.gguf", "glm4moe"))
    facts = memory_facts(header)
    assert (facts.n_slots, len(facts.layers)) == (5, 3)
    skipped = sum(t.size_bytes for t in header.tensors if t.name.startswith("blk.3."))
    loaded = sum(w.size_bytes for w in facts.weights)
    assert skipped > 0
    assert loaded == sum(t.size_bytes for t in header.tensors) - skipped
    assert device_use(facts, MemoryPlan(gpu_layers=2), [CPU, GPU]).buckets[1].kv_bytes == 0
