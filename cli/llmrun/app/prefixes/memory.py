"""Sequences that were copied out, and how much memory copies may take."""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.engine.api import State
from llmrun.prefix.checkpoints import Checkpoint

MEMORY_SHARE = 16
"""Checkpoints and copies together take at most this part (1/16) of the main memory that is free."""

MEMORY_MOST_BYTES = 1 << 30
"""And never more than this: what is not used again should not push out what is."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A sequence that was copied out whole, with the checkpoints taken on it."""

    tokens: tuple[int, ...]
    state: State
    checkpoints: tuple[Checkpoint[State], ...] = ()

    @property
    def size_bytes(self) -> int:
        """All of its copies together."""
        return self.state.size_bytes + sum(c.size_bytes for c in self.checkpoints)


def memory_budget() -> int:
    """Bytes that checkpoints and copies may take on this machine now."""
    from llmrun.app.memory.host_memory import host_memory

    return min(host_memory().free_bytes // MEMORY_SHARE, MEMORY_MOST_BYTES)
