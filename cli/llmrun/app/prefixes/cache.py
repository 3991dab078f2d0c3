"""The prefix cache of one open model: what a request need not evaluate, and what is worth keeping of it.

Before a request the longest usable prefix is looked for where it costs least: on the live sequence, through
a checkpoint of it, among copies of sequences in memory, on disk. During the prefill checkpoints are taken.
What the live sequence is about to lose is copied first, if coming back to it would be dear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from llmrun.app.prefixes.disk import DiskPrefixes, Search
from llmrun.app.prefixes.live_sequence import LiveSequence
from llmrun.app.prefixes.memory import Kept, memory_budget
from llmrun.app.prefixes.reasons import Missed, difference, miss_reason
from llmrun.chat.turns import History, load_history
from llmrun.engine.api import Engine, PrefillStep
from llmrun.events import Notice, PrefixReport
from llmrun.metrics.clock import Clock
from llmrun.prefix.checkpoints import forgets, marks
from llmrun.prefix.eviction import StateCache
from llmrun.prefix.reuse import common_prefix
from llmrun.prefix.trie import Found
from llmrun.prefix.worth import LEAST_SAVED_S, pays
from llmrun.units import format_seconds

log = logging.getLogger("llmrun.prefix")

SEARCH_S = 0.02
"""What a search on disk may save at least; it takes a few milliseconds."""

FEWEST_TIMED = 16
"""A prefill of fewer tokens says little about the rate of a longer one."""

NO_TOKEN = -1
"""Stands for a token that continues a prefix, whatever it is."""

FEWEST_COPIED = 64
"""A branch of fewer tokens is evaluated again sooner than it is found and put back."""

MOST_AHEAD = 32
"""Tokens; what a template puts between an answer and the next message is less, and takes no longer than a few
more tokens of the answer would."""

Origin = Literal["memory", "checkpoint", "disk"]
Cuts = Callable[[int], Iterable[int]]
"""Natural places to cut a prompt, beyond the position it is given."""


@dataclass(slots=True)
class _Request:
    """The request under way."""

    missed: Missed
    origin: Origin = "memory"
    marks: frozenset[int] = frozenset()
    began_s: float = 0.0


class PrefixCache:
    """Serves one sequence of one engine. Not thread-safe: it works where the engine works."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        disk: DiskPrefixes | None = None,
        enabled: bool = True,
        seq: int = 0,
    ) -> None:
        """`enabled` off: only what the live sequence holds is reused, and nothing is kept beside it."""
        self._engine = engine
        self._live = LiveSequence(engine, seq)
        self._clock = clock
        self._disk = disk if enabled else None
        self._enabled = enabled
        self._spent_s = 0.0  # time of the requests since the last snapshot
        self._told_foreign = False
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

    def prepare(
        self, prompt: Sequence[int], cuts: Cuts = lambda _: (), *, goes_on: bool = False
    ) -> Generator[Notice, None, tuple[int, ...]]:
        """Bring the sequence as near to `prompt` as it gets; returns the marks for its job.

        After a long prefill the last token is evaluated by itself, as it is when the same prompt comes again:
        on quantized models logits depend on the slices, and the cache must not change the answer.

        Args:
            goes_on: the prompt continues the conversation of the request before it.
        """
        self._live.drop_ahead(prompt)
        live = self._live.way(prompt)
        held = self._live.held()
        common = common_prefix(held, prompt)
        rewritten, off = goes_on and common < len(held), not self._enabled
        missed = Missed(prompt, 0, held or None, common, rewritten=rewritten, off=off)
        self._request = request = _Request(missed)
        copy = self._best_copy(prompt, live.tokens)
        known = copy.usable if copy else live.tokens
        search = self._search_disk(prompt, known)
        yield from self._told(search)
        if common < len(held) // 2 and self._enabled:
            self._copy(held)
        stored = yield from self._read(search, gained=search.way.tokens - known)
        if stored is not None:
            request.origin = "disk"
            tokens = self._put_back(stored, prompt)
        elif copy is not None:
            tokens = self._put_back(copy.handle, prompt)
        else:
            request.origin = "checkpoint" if live.checkpoint else "memory"
            tokens = self._live.take(live)
        if forgets(self._engine.facts.memory):
            n_ubatch = self._engine.facts.n_ubatch
            request.marks = frozenset(marks(len(prompt), n_ubatch, cuts(tokens), reused=tokens))
            return tuple(sorted(request.marks))
        return (len(prompt) - 1,) if len(prompt) - tokens >= FEWEST_COPIED else ()

    def _best_copy(self, prompt: Sequence[int], tokens: int) -> Found[Kept] | None:
        """The copy in memory that saves more than `tokens`, which are saved without."""
        if not self._enabled:
            return None
        copy = self._copies.longest(prompt, lambda kept, _: self._live.way_of(kept, prompt).tokens)
        if copy is None or copy.usable <= tokens:
            return None
        self._copies.touch(copy.handle)
        self._nearer(copy.handle.tokens, copy.common)
        return copy

    def _search_disk(self, prompt: Sequence[int], tokens: int) -> Search:
        """Look on disk where that can save more than the search takes; `tokens` are saved without."""
        left = len(prompt) - 1 - tokens
        known = self.prefill_s_per_token
        if self._disk is None or left < FEWEST_COPIED or (known and left * known < SEARCH_S):
            return Search()
        search = self._disk.search(prompt, self._engine.facts)
        if search.nearest is not None:
            self._nearer(search.nearest.tokens, search.common)
        missed = self._request.missed
        damaged = bool(search.damaged + search.foreign)
        self._request.missed = replace(missed, other_settings=search.other_settings, damaged=damaged)
        return search

    def _told(self, search: Search) -> Iterator[Notice]:
        """What the user should know of the files that were searched, foreign ones once."""
        if search.damaged:
            yield Notice("warning", f"stored prefixes were damaged and have been removed: {search.damaged}")
        if search.foreign and not self._told_foreign:
            self._told_foreign = True
            yield Notice("warning", f"files that are no prefixes of this model are ignored: {search.foreign}")
        if search.other_settings:
            yield Notice("info", f"a stored prefix does not fit: {search.other_settings}")

    def _nearer(self, tokens: Sequence[int], common: int) -> None:
        """Compare the prompt with this sequence, if it shares more with it than the one before."""
        missed = self._request.missed
        if missed.nearest is None or common > missed.common:
            self._request.missed = replace(missed, nearest=tokens, common=common)

    def _read(self, search: Search, gained: int) -> Generator[Notice, None, Kept | None]:
        """Read the snapshot that was found, if it gains enough; None also where it turns out damaged."""
        if self._disk is None or search.best is None or not self._disk.worth_reading(search.best, gained):
            return None
        kept = self._disk.load(search.best)
        if kept is None:
            self._request.missed = replace(self._request.missed, damaged=True)
            yield from self._told(Search(damaged=1))
        elif not self.prefill_s_per_token:
            self.prefill_s_per_token = search.best.prefill_s
        return kept

    def _put_back(self, kept: Kept, prompt: Sequence[int]) -> int:
        """Make a copy the live sequence and rewind it for `prompt`; returns the tokens that saves."""
        return self._live.take(self._live.way_of(kept, prompt)) if self._live.put_back(kept) else 0

    def _copy(self, held: Sequence[int]) -> None:
        """Copy the live sequence, most of which is about to go, if the copy is worth it and not too large."""
        if len(held) >= FEWEST_COPIED and self._live.size_bytes() <= self._budget_bytes:
            kept = self._live.copy()
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
            self._live.held()  # what has been cut off takes its checkpoints along
        elif step.done == step.total >= FEWEST_TIMED:
            self.prefill_s_per_token = (now_s - self._request.began_s) / step.total
        position = step.reused + step.done
        if step.done and position in self._request.marks:
            self._live.checkpoint(position, self._budget_bytes if self._enabled else 0)

    @property
    def reads_ahead(self) -> bool:
        """Whether `read_ahead` may do anything: what was read in vain has to be taken back exactly."""
        return self._enabled and not forgets(self._engine.facts.memory)

    def read_ahead(self, opening: Sequence[int]) -> None:
        """Evaluate how the prompt to come begins, where that is a little more than the sequence holds.

        Whether it is done does not depend on how fast the machine is just now: on quantized models logits
        depend on the slices, and the same messages should get the same answers.
        """
        held = self._live.held()
        is_little = 0 < len(opening) - len(held) <= MOST_AHEAD and len(opening) < self._engine.facts.n_ctx_seq
        if self.reads_ahead and is_little and common_prefix(held, opening) == len(held):
            self._live.read_ahead(opening[len(held) :])

    def keep(
        self, n_prompt: int, spent_s: float, history: History | None, *, leaving: bool = False
    ) -> Iterator[Notice]:
        """Keep on disk what the sequence holds, if that pays; called when an answer has been shown.

        Args:
            n_prompt: its first tokens, which may be asked for again.
            spent_s: how long the request took.
            history: how its tokens came about, where the conversation can go on with all of them.
            leaving: the conversation ends.
        """
        self._spent_s += spent_s
        held, facts = self._live.held(), self._engine.facts
        wanted = held if history else held[:n_prompt]
        most_s = len(wanted) * self.prefill_s_per_token
        if self._disk is None or not wanted or most_s < LEAST_SAVED_S:
            return
        stored = self._disk.search([*wanted, NO_TOKEN], facts).way.tokens
        saved_s = (len(wanted) - stored) * self.prefill_s_per_token
        cost = self._disk.cost(self._live.size_bytes())
        if cost is None:
            return
        total_s = self._spent_s
        if cost.hashed_bytes:  # once for all prefixes of this model, so that all its requests count
            total_s, self._spent_s = self._disk.time_used(self._spent_s), 0.0
        if not pays(saved_s, cost, spent_s=total_s, leaving=leaving):
            saved, keeping, reading = map(format_seconds, (saved_s, cost.keep_s, cost.read_s))
            log.debug("not kept: a hit would save %s, keeping takes %s, reading %s", saved, keeping, reading)
            return
        if history is None and not forgets(facts.memory):
            self._live.cut(n_prompt)
        began_s = self._clock()
        kept = self._live.copy()
        self._spent_s, copied_s = 0.0, self._clock() - began_s
        told = history.dump() if history else ""
        yield from self._disk.keep(kept, self.prefill_s_per_token, told, facts.memory, copied_s, cost)

    def remembered(self) -> Iterator[History]:
        """Histories kept on disk, the last used first."""
        texts = self._disk.histories() if self._disk is not None else ()
        yield from map(load_history, texts)
