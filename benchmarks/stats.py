"""Statistics of interleaved measurements: medians, and how two series that were taken in turns compare.

A machine's speed drifts (clock, heat, neighbours), so two programs are measured in rounds, one after the
other, and compared twice: by the ratio of their medians, and by the median of the ratios within each round.
The first is the headline; a second one that disagrees says that the machine was too restless to believe
either. Medians, since one disturbed run would move a mean (after Hoefler and Belli, "Scientific Benchmarking
of Parallel Computing Systems", SC 2015).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Comparison:
    """`of_medians` compares the medians of two series; the others describe the pairs within each round."""

    of_medians: float
    paired_median: float
    paired_min: float
    paired_max: float


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Comparison:
    """How many times the second series the first is. Raises ValueError for no samples or unequal numbers."""
    return _compare(numerators, denominators, lambda a, b: a / b)


def difference(minuends: Sequence[float], subtrahends: Sequence[float]) -> Comparison:
    """How much larger the first series is, in its unit. Raises ValueError as `ratio` does."""
    return _compare(minuends, subtrahends, lambda a, b: a - b)


def _compare(
    first: Sequence[float], second: Sequence[float], relate: Callable[[float, float], float]
) -> Comparison:
    if not first or len(first) != len(second):
        raise ValueError(f"series of {len(first)} and {len(second)} samples cannot be compared in pairs")
    pairs = [relate(a, b) for a, b in zip(first, second, strict=True)]
    return Comparison(
        of_medians=relate(statistics.median(first), statistics.median(second)),
        paired_median=statistics.median(pairs),
        paired_min=min(pairs),
        paired_max=max(pairs),
    )
