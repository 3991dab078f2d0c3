"""What `llmrun bench --compare` finds, as values: made by `bench`, shown by `ui`."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_RUNS = 3
"""Fewer runs say nothing about how far one may be from the next."""


@dataclass(frozen=True, slots=True)
class RatioRow:
    """A test on two sides: rate of the second over that of the first, with a confidence interval.

    `low` and `high` are None where too few samples give none. `first_runs` and `second_runs`: how many runs a
    side has.
    """

    label: str
    first: float
    second: float
    ratio: float
    low: float | None
    high: float | None
    flags: tuple[str, ...]
    first_runs: int
    second_runs: int

    @property
    def over_runs(self) -> bool:
        """Whether both sides have runs enough to tell how one differs from the next."""
        return min(self.first_runs, self.second_runs) >= LEAST_RUNS

    @property
    def outside(self) -> bool:
        """True where the interval leaves out 1: these runs differ."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def shown(self) -> bool:
        """True where what was compared differs, and not just these runs of it."""
        return self.outside and self.over_runs


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides by name, the tests both have, and how many only one has."""

    first: str
    second: str
    rows: tuple[RatioRow, ...]
    only_first: int
    only_second: int
    confidence: float
