"""What the K/V cache holds: positions, and the share of the reserved bytes they take.

The engine reserves whole buffers when a context is made; `size_bytes` of a block covers its `cells`
positions in each of its streams (one stream when sequences share the cells, else one a sequence). A
full-attention layer keeps every position, a sliding-window layer only the window's last `n_swa`, and a
recurrent layer one state of fixed size whatever the length, so its block counts whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from llmrun.events import DeviceKv


class Block(Protocol):
    """One cache buffer as the engine reports it (`engine.api.CacheBlock` has this shape)."""

    @property
    def kind(self) -> Literal["full", "swa", "recurrent"]: ...
    @property
    def device(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def cells(self) -> int: ...


def block_used_bytes(block: Block, held: Sequence[int], *, n_stream: int, n_swa: int, swa_full: bool) -> int:
    """Bytes of `block` that `held` positions (one count a sequence) take, rounded down.

    `n_stream` is 1 for a unified cache. `n_swa` is the window in tokens, 0 for none; with `swa_full` a
    window layer keeps every position like the others.
    """
    if block.kind == "recurrent":
        return block.size_bytes
    windowed = block.kind == "swa" and n_swa > 0 and not swa_full
    limit = min(block.cells, n_swa) if windowed else block.cells
    positions = sum(min(count, limit) for count in held)
    capacity = block.cells * n_stream
    return block.size_bytes * min(positions, capacity) // capacity if capacity else 0


def device_kv(
    blocks: Iterable[Block], held: Sequence[int], *, n_stream: int = 1, n_swa: int = 0, swa_full: bool = False
) -> tuple[DeviceKv, ...]:
    """Allocated and used bytes on each device, devices in the order they first appear."""
    allocated: dict[str, int] = {}
    used: dict[str, int] = {}
    for block in blocks:
        share = block_used_bytes(block, held, n_stream=n_stream, n_swa=n_swa, swa_full=swa_full)
        allocated[block.device] = allocated.get(block.device, 0) + block.size_bytes
        used[block.device] = used.get(block.device, 0) + share
    return tuple(DeviceKv(device, allocated[device], used[device]) for device in allocated)
