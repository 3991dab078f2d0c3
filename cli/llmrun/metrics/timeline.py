"""When things happened during one request, and what follows from it.

A request has two phases with different physics. Prefill evaluates the prompt many tokens at a time and is
bound by arithmetic; decode evaluates one token a step and is bound by reading the weights. So they are
timed apart, and the wait for the first token (TTFT) is kept out of the rate of the others:

    TTFT = accepted -> first token = queue + tokenise + prefill + first sample
    mean ITL = (last token - first token) / (n - 1)        generation rate = 1 / mean ITL

Serving benchmarks use the same definitions (vLLM calls the mean ITL of a request TPOT). Tokens that arrive
together share their step's time equally. Percentiles are nearest-rank: each is a time that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmrun.events import GenerationStats, ItlStats, TextKind
from llmrun.metrics.clock import Clock


class Timeline:
    """Marks of one request, made in order, each at the time the clock shows when the method is called.

    `accepted`, `started`, `tokenized`, `prefill_started`, `prefilled`, `token` once a decode step, then
    `finished`. A request may end after any of them: the part under way runs to the end, later ones take 0 s.
    """

    def __init__(self, clock: Clock, load_s: float = 0.0) -> None:
        self._clock = clock
        self._load_s = load_s
        self._marks: dict[str, float] = {}
        self._arrivals: list[tuple[float, int]] = []
        self._answer_s: float | None = None
        self._reasoning_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def _mark(self, name: str) -> float:
        return self._marks.setdefault(name, self._clock())

    def accepted(self) -> float:
        """The request was taken: TTFT and total count from here. Returns the time on the clock."""
        return self._mark("accepted")

    def started(self) -> None:
        """Work on the request begins; until here it waited. May be left out where nothing waits."""
        self._mark("started")

    def tokenized(self, prompt_tokens: int) -> None:
        """The prompt is rendered and split into `prompt_tokens` tokens."""
        self._prompt_tokens = prompt_tokens
        self._marks.setdefault("started", self.accepted())
        self._mark("tokenized")

    def prefill_started(self) -> None:
        """Evaluation of the prompt begins."""
        self._mark("prefill_started")

    def reused(self, cached_tokens: int) -> None:
        """The K/V of the first `cached_tokens` prompt tokens is reused; told once it is known."""
        self._cached_tokens = cached_tokens

    def prefilled(self) -> None:
        """The whole prompt has been evaluated."""
        self._mark("prefilled")

    def token(self, n: int = 1, kind: TextKind = "answer") -> float:
        """`n` sampled tokens became available in one step. Returns the time on the clock."""
        now_s = self._clock()
        self._arrivals.append((now_s, n))
        if kind == "reasoning":
            self._reasoning_tokens += n
        elif self._answer_s is None:
            self._answer_s = now_s
        return now_s

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return self._reasoning_tokens

    def finished(self) -> GenerationStats:
        """Figures of the request. Without any token `total_s` runs to this call."""
        end_s = self._clock()
        accepted_s = self._marks.get("accepted", end_s)
        times_s = self._arrivals
        first_s = times_s[0][0] if times_s else None
        last_s = times_s[-1][0] if times_s else end_s
        queue_s = self._between("accepted", "started", end_s)
        queue_s += self._between("tokenized", "prefill_started", end_s)
        return GenerationStats(
            load_s=self._load_s,
            queue_s=queue_s,
            tokenize_s=self._between("started", "tokenized", end_s),
            prefill_s=self._between("prefill_started", "prefilled", end_s),
            ttft_s=None if first_s is None else first_s - accepted_s,
            ttft_answer_s=None if self._answer_s is None else self._answer_s - accepted_s,
            generation_s=0.0 if first_s is None else last_s - first_s,
            total_s=last_s - accepted_s,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=sum(n for _, n in times_s),
            reasoning_tokens=self._reasoning_tokens,
            itl=itl_stats(times_s),
            prefill_complete="prefilled" in self._marks,
        )

    def _between(self, begin: str, end: str, now_s: float) -> float:
        if begin not in self._marks:
            return 0.0
        return self._marks.get(end, now_s) - self._marks[begin]


def token_gaps(arrivals: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds each token after the first took, from (time, tokens) of each step.

    The tokens of a step share the time since the step before. The first step's time belongs to TTFT, so
    further tokens of that step took none. The gaps add up to last - first.
    """
    if not arrivals:
        return []
    previous_s, first_n = arrivals[0]
    gaps_s = [0.0] * (first_n - 1)
    for time_s, n in arrivals[1:]:
        gaps_s += [(time_s - previous_s) / n] * n
        previous_s = time_s
    return gaps_s


def itl_stats(arrivals: Sequence[tuple[float, int]]) -> ItlStats | None:
    """Inter-token latency from (time in seconds, tokens) of each step; None below two tokens."""
    gaps_s = sorted(token_gaps(arrivals))
    if not gaps_s:
        return None
    return ItlStats(
        mean_s=(arrivals[-1][0] - arrivals[0][0]) / len(gaps_s),
        p50_s=nearest_rank(gaps_s, 50),
        p90_s=nearest_rank(gaps_s, 90),
        p99_s=nearest_rank(gaps_s, 99),
        max_s=gaps_s[-1],
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Smallest value with at least `percent` (1 to 100) of all values at or below it; `ordered` ascends."""
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]
