"""The prefix cache of one open model: what a request need not evaluate, and what is worth keeping of it.

Before a request the longest usable prefix is looked for where it costs least: on the live sequence, through
a checkpoint of it, among copies of sequences in memory, on disk. During the prefill checkpoints are taken.
What the live sequence is about to lose is copied first, if coming back to it would be dear.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from llmrun.app.kv_use import kv_use
from llmrun.app.prefix_reasons import Missed, difference, miss_reason
from llmrun.engine.api import Engine, PrefillStep, State
from llmrun.events import Notice, PrefixReport
from llmrun.metrics.clock import Clock
from llmrun.prefix.checkpoints import Checkpoint, Way, best_way, forgets, marks, still_valid, thinned
from llmrun.prefix.eviction import StateCache
from llmrun.prefix.reuse import common_prefix

MEMORY_SHARE = 16
"""Checkpoints and copies together take at most this part (1/16) of the main memory that is free."""

MEMORY_MOST_BYTES = 1 << 30
"""And never more than this: what is not used again should not push out what is."""

FEWEST_COPIED = 64
"""A branch of fewer tokens is evaluated again sooner than it is found and put back."""

Origin = Literal["memory", "checkpoint", "disk"]
Cuts = Callable[[int], Iterable[int]]
"""Natural places to cut a prompt, beyond the position it is given."""


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


@dataclass(slots=True)
class _Request:
    """The request under way."""

    missed: Missed
    origin: Origin = "memory"
    marks: frozenset[int] = frozenset()
    began_s: float = 0.0


class PrefixCache:
    """Serves one sequence of one engine. Not thread-safe: it works where the engine works."""

    def __init__(self, engine: Engine, clock: Clock, *, enabled: bool = True, seq: int = 0) -> None:
        """`enabled` off: only what the live sequence holds is reused, and nothing is kept beside it."""
        self._engine = engine
        self._clock = clock
        self._seq = seq
        self._enabled = enabled
        self._checkpoints: list[Checkpoint[State]] = []
        self._held: list[int] = []  # what the sequence held when the checkpoints were last looked at
        self._request = _Request(Missed((), 0))
        self.prefill_s_per_token = 0.0
        """Measured on the last prefill; 0 before the first."""

    @cached_property
    def _budget_bytes(self) -> int:
        """For checkpoints, and once more for copies; found out when the first is to be kept."""
        return memory_budget() // 2

    @cached_property
    def _copies(self) -> StateCache[Kept]:
        return StateCache(self._budget_bytes)

    def use(self, engine: Engine) -> None:
        """Go on with another context of the same model, which holds the same sequence."""
        self._engine = engine

    def prepare(
        self, prompt: Sequence[int], cuts: Cuts = lambda _: (), *, goes_on: bool = False
    ) -> Generator[Notice, None, tuple[int, ...]]:
        """Bring the sequence as near to `prompt` as it gets; returns the marks for its job.

        Args:
            goes_on: the prompt continues the conversation of the request before it.
        """
        held = self._validated()
        common = common_prefix(held, prompt)
        missed = Missed(prompt, 0, held or None, common, rewritten=goes_on and common < len(held))
        self._request = _Request(missed)
        tokens = self._from_live(held, prompt, common)
        if self._enabled and forgets(self._engine.facts.memory):
            places = marks(len(prompt), self._engine.facts.n_ubatch, cuts(tokens), reused=tokens)
            self._request.marks = frozenset(places)
        yield from ()
        return tuple(sorted(self._request.marks))

    def _from_live(self, held: Sequence[int], prompt: Sequence[int], common: int) -> int:
        """Take the best way that costs no reading; returns the tokens it saves."""
        way = self._way(held, self._engine.pos_min(self._seq), self._checkpoints, prompt)
        if not self._enabled:
            return way.tokens
        copy = self._copies.longest(prompt, lambda kept, _: self._way_of(kept, prompt).tokens)
        if common < len(held) // 2 and len(held) >= FEWEST_COPIED:
            self._copy(held)
        if copy is not None and copy.usable > way.tokens:
            self._copies.touch(copy.handle)
            if copy.common > self._request.missed.common:
                self._request.missed = replace(
                    self._request.missed, nearest=copy.handle.tokens, common=copy.common
                )
            return self._put_back(copy.handle, prompt)
        return self._take(way)

    def _put_back(self, kept: Kept, prompt: Sequence[int]) -> int:
        """Make a copy the live sequence and rewind it for `prompt`; returns the tokens that saves."""
        self._checkpoints = []
        if not self._engine.restore(self._seq, kept.state, kept.tokens):
            self._held = []
            return 0
        self._held, self._checkpoints = list(kept.tokens), list(kept.checkpoints)
        return self._take(self._way_of(kept, prompt), "memory")

    def _take(self, way: Way[State], origin: Origin = "checkpoint") -> int:
        """Go a way on the live sequence as far as the engine does not by itself."""
        point = way.checkpoint
        if point is not None:
            if not self._engine.restore(self._seq, point.handle, self._held[: point.position]):
                return 0
            self._request.origin = origin
        return way.tokens

    def _way_of(self, kept: Kept, prompt: Sequence[int]) -> Way[State]:
        return self._way(kept.tokens, kept.state.pos_min, kept.checkpoints, prompt)

    def _way(
        self,
        held: Sequence[int],
        pos_min: int,
        checkpoints: Sequence[Checkpoint[State]],
        prompt: Sequence[int],
    ) -> Way[State]:
        kind = self._engine.facts.memory
        return best_way(held, prompt, pos_min=pos_min, checkpoints=checkpoints, kind=kind)

    def _validated(self) -> list[int]:
        """What the sequence holds now; checkpoints of what it no longer holds are dropped."""
        held = list(self._engine.held(self._seq))
        self._checkpoints = still_valid(self._checkpoints, self._held, held)
        self._held = held
        return held

    def _copy(self, held: Sequence[int]) -> None:
        """Copy the live sequence, most of which is about to go, if the copy is not too large to keep."""
        size_bytes = kv_use(self._engine, self._seq).used_bytes
        if size_bytes > self._budget_bytes:
            return
        kept = Kept(tuple(held), self._engine.save(self._seq), tuple(self._checkpoints))
        self._copies.insert(kept.tokens, kept, kept.size_bytes)

    def report(self, reused: int) -> PrefixReport:
        """Where the `reused` tokens came from, or why there were none; told once the prefill has begun."""
        request, kind = self._request, self._engine.facts.memory
        missed = replace(request.missed, reused=reused)
        found = difference(missed, self._engine.piece)
        report = PrefixReport(miss_reason=miss_reason(missed, found, kind), difference=found)
        match request.origin:
            case "memory":
                return replace(report, memory_tokens=reused)
            case "checkpoint":
                return replace(report, checkpoint_tokens=reused)
            case "disk":
                return replace(report, disk_tokens=reused)

    def reached(self, step: PrefillStep) -> None:
        """A slice of the prefill is done: time it, and take a checkpoint where there is a mark."""
        now_s = self._clock()
        if step.done == 0:
            self._request.began_s = now_s
            self._validated()
        elif step.done == step.total:
            self.prefill_s_per_token = (now_s - self._request.began_s) / step.total
        position = step.reused + step.done
        if step.done and position in self._request.marks:
            state = self._engine.save(self._seq, partial=True)
            self._validated()
            point = Checkpoint(position, state.pos_min, state.size_bytes, state)
            self._checkpoints = thinned([*self._checkpoints, point], self._budget_bytes)


def memory_budget() -> int:
    """Bytes that checkpoints and copies may take on this machine now."""
    from llmrun.app.host_memory import host_memory

    return min(host_memory().free_bytes // MEMORY_SHARE, MEMORY_MOST_BYTES)
