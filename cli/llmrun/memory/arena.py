"""The graph allocator of the engine, in miniature.

Intermediate results of a graph share one buffer: each gets the smallest free gap it fits into (the last of
equal ones), else the open end, and its place is free again after its last reader. The buffer's size is the
highest end ever reached, so it depends on the order of allocations as well as on their sizes. Source:
ggml_dyn_tallocr in ggml/src/ggml-alloc.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Block = tuple[int, int]
"""Offset and size of an allocation."""


@dataclass(slots=True)
class Arena:
    """One device's compute buffer. Sizes are rounded up to `alignment` bytes."""

    alignment: int = 32
    peak_bytes: int = 0
    _gaps: list[Block] = field(default_factory=list)
    _end: int = 0

    def take(self, size_bytes: int) -> Block:
        """A place for `size_bytes` bytes; nothing takes none."""
        size = size_bytes + -size_bytes % self.alignment
        if not size:
            return 0, 0
        fitting = [gap for gap in self._gaps if gap[1] >= size]
        if not fitting:
            block = (self._end, size)
            self._end += size
            self.peak_bytes = max(self.peak_bytes, self._end)
            return block
        best = min(fitting, key=lambda gap: (gap[1], -gap[0]))
        self._gaps.remove(best)
        if best[1] > size:
            self._gaps.append((best[0] + size, best[1] - size))
        return best[0], size

    def give(self, *blocks: Block) -> None:
        """Free places again; neighbouring gaps become one."""
        for block in blocks:
            if block[1]:
                self._give(block)

    def _give(self, block: Block) -> None:
        start, size = block
        for gap in [g for g in self._gaps if g[0] + g[1] == start or start + size == g[0]]:
            self._gaps.remove(gap)
            start, size = min(start, gap[0]), size + gap[1]
        if start + size == self._end:
            self._end = start
        else:
            self._gaps.append((start, size))
