from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from llmrun.engine.api import CacheBlock
from llmrun.events import DeviceKv
from llmrun.metrics.kv import block_used_bytes, device_kv


@dataclass(frozen=True)
class Buffer:
    kind: Literal["full", "swa", "recurrent"]
    device: str
    size_bytes: int
    cells: int


def used(block: Buffer, held: list[int], n_stream: int = 1, n_swa: int = 0, swa_full: bool = False) -> int:
    return block_used_bytes(block, held, n_stream=n_stream, n_swa=n_swa, swa_full=swa_full)


def test_full_attention_takes_its_share_of_the_cells() -> None:
    full = Buffer("full", "CPU", 8192 * 23_040, 8192)
    assert used(full, [0]) == 0
    assert used(full, [100]) == 100 * 23_040
    assert used(full, [9000]) == full.size_bytes


def test_a_window_layer_holds_at_most_its_window() -> None:
    window = Buffer("swa", "CPU", 1024 * 100, 1024)
    assert used(window, [300], n_swa=512) == 300 * 100
    assert used(window, [5000], n_swa=512) == 512 * 100


def test_a_full_size_window_cache_holds_every_position() -> None:
    window = Buffer("swa", "CPU", 8192 * 100, 8192)
    assert used(window, [5000], n_swa=512, swa_full=True) == 5000 * 100


def test_recurrent_state_counts_whole() -> None:
    assert used(Buffer("recurrent", "CPU", 12_345, 1), [0]) == 12_345


def test_streams_have_their_own_cells_and_a_unified_cache_shares_them() -> None:
    split = Buffer("full", "CPU", 4 * 256 * 10, 256)
    assert used(split, [100, 300, 0, 0], n_stream=4) == (100 + 256) * 10
    shared = Buffer("full", "CPU", 256 * 10, 256)
    assert used(shared, [100, 300]) == 256 * 10


def test_bytes_are_summed_on_each_device() -> None:
    blocks = [
        CacheBlock("full", "CUDA0", 1000, 100),
        CacheBlock("full", "CPU", 500, 100),
        CacheBlock("swa", "CUDA0", 400, 40),
    ]
    assert device_kv(blocks, [50], n_swa=20) == (DeviceKv("CUDA0", 1400, 700), DeviceKv("CPU", 500, 250))


BLOCKS = st.builds(
    Buffer,
    kind=st.sampled_from(["full", "swa", "recurrent"]),
    device=st.sampled_from(["CPU", "CUDA0"]),
    size_bytes=st.integers(min_value=0, max_value=1 << 40),
    cells=st.integers(min_value=0, max_value=1 << 20),
)


@given(
    st.lists(BLOCKS, max_size=5),
    st.lists(st.integers(min_value=0, max_value=1 << 21), max_size=4),
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=0, max_value=4096),
    st.booleans(),
)
def test_used_never_exceeds_allocated_and_grows_with_the_tokens(
    blocks: list[Buffer], held: list[int], n_stream: int, n_swa: int, swa_full: bool
) -> None:
    now = device_kv(blocks, held, n_stream=n_stream, n_swa=n_swa, swa_full=swa_full)
    more = device_kv(blocks, [h + 1 for h in held], n_stream=n_stream, n_swa=n_swa, swa_full=swa_full)
    assert sum(d.allocated_bytes for d in now) == sum(b.size_bytes for b in blocks)
    for before, after in zip(now, more, strict=True):
        assert 0 <= before.used_bytes <= after.used_bytes <= after.allocated_bytes
