"""The compute buffer: the allocator in miniature, and the formula against real contexts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.engine.api import ContextParams
from llmrun.engine.bindings import native_log
from llmrun.engine.context import Context
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.arena import Arena
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.use import device_use
from llmrun.units import MIB

from tests.support.engines import open_llama
from tests.support.models import gemma_path, smollm2_path

CPU = DeviceInfo("CPU", "cpu", 1 << 40, 1 << 40)
GPU = DeviceInfo("CUDA0", "gpu", 1 << 40, 1 << 40)
SERVER = DeviceInfo("RPC0", "gpu", 1 << 40, 1 << 40)
_LINE = re.compile(r"CPU compute buffer size =\s*([\d.]+) MiB")

SETTINGS: list[dict[str, Any]] = [
    {},
    {"n_ctx": 16384},
    {"flash_attn": "off"},
    {"n_ubatch": 128},
    {"n_seq": 4},
    {"n_seq": 4, "kv_unified": False},
    {"swa_full": True},
    {"type_k": "q8_0", "type_v": "q8_0"},
    {"type_k": "q4_0", "n_ubatch": 256},
]


def test_the_smallest_gap_is_taken() -> None:
    arena = Arena()
    blocks = [arena.take(size) for size in (64, 32, 128, 32, 32)]
    arena.give(blocks[0], blocks[2])
    assert arena.take(64)[0] == blocks[0][0]
    assert arena.take(100)[0] == blocks[2][0]
    assert arena.peak_bytes == 288


def test_neighbours_join_and_the_end_moves_back() -> None:
    arena = Arena(1)
    first, second, third = arena.take(10), arena.take(10), arena.take(10)
    arena.give(first)
    arena.give(second)
    assert arena.take(20)[0] == 0
    arena.give(third)
    arena.take(5)
    assert arena.peak_bytes == 30


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=60))
def test_live_blocks_never_overlap(steps: list[tuple[int, bool]]) -> None:
    arena = Arena()
    live: list[tuple[int, int]] = []
    for number, free in steps:
        if free and live:
            arena.give(live.pop(number % len(live)))
        else:
            live.append(arena.take(number))
        ends = sorted(live)
        assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(ends))
        assert arena.peak_bytes >= max((start + size for start, size in live), default=0)
    arena.give(*live)
    assert arena.take(32)[0] == 0


def logged(path: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """Compute buffers that real contexts report, in MiB."""
    engine = open_llama(path, n_ctx=256)
    for settings in SETTINGS:
        params: dict[str, Any] = {"n_ctx": 8192, "flash_attn": "on"} | settings
        context = Context(engine._model, ContextParams(**params))
        lines = list(native_log.lines)
        context.close()
        (size_mib,) = [float(m[1]) for line in lines if (m := _LINE.search(line))]
        yield settings, size_mib
    engine.close()


@pytest.mark.parametrize("path", [smollm2_path, pytest.param(gemma_path, marks=pytest.mark.slow)])
def test_as_the_engine_reserves(path) -> None:  # type: ignore[no-untyped-def]
    facts = memory_facts(read_header(path()))
    for settings, size_mib in logged(path()):
        plan = MemoryPlan(**({"n_ctx": 8192} | settings))
        (host,) = device_use(facts, plan, [CPU]).buckets
        assert host.compute_bytes / MIB == pytest.approx(size_mib, rel=0.002), settings


def test_a_device_without_layers_needs_no_buffer() -> None:
    facts = memory_facts(read_header(smollm2_path()))
    for device in (GPU, SERVER):
        host, gpu = device_use(facts, MemoryPlan(gpu_layers=0), [CPU, device]).buckets
        assert gpu.sum_bytes == 0
        assert host == device_use(facts, MemoryPlan(), [CPU]).buckets[0]
    host, gpu = device_use(facts, MemoryPlan(gpu_layers=1), [CPU, SERVER]).buckets
    assert host.compute_bytes > 0
    assert gpu.compute_bytes == 4 * (facts.n_embd + facts.n_vocab)


def test_a_gpu_holds_copies_of_what_it_borrows() -> None:
    facts = memory_facts(read_header(smollm2_path()))
    largest = max(w.size_bytes for w in facts.weights if w.name.startswith("blk."))
    cache_bytes = 2 * 8192 * 192 * 2

    def compute(device: DeviceInfo, index: int = 1, **changes: Any) -> int:
        return device_use(facts, MemoryPlan(**changes), [CPU, device]).buckets[index].compute_bytes

    assert compute(GPU, gpu_layers=1) > largest + cache_bytes
    assert compute(GPU, gpu_layers=20) > compute(SERVER, gpu_layers=20)
    assert compute(GPU, gpu_layers=99) == compute(SERVER, gpu_layers=99)
    assert compute(GPU, gpu_layers=20, n_ubatch=16) == compute(SERVER, gpu_layers=20, n_ubatch=16)
    assert compute(GPU, 0, gpu_layers=20) < compute(SERVER, 0, gpu_layers=20)
