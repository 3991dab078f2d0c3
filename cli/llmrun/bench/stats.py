"""Statistics of a handful of samples.

Rates of repeated runs are few, skewed (a disturbance only slows) and now and then wildly off. So mean and
standard deviation are given because llama-bench gives them, the median beside them, and outliers are found
by the distance from the median in units of the median absolute deviation: the modified z-score above 3.5
(Iglewicz, Hoaglin: How to Detect and Handle Outliers, 1993). Whether two sides differ is told by the
percentile bootstrap of the ratio of their means (Efron, Tibshirani: An Introduction to the Bootstrap, 1993):
draw both samples again with replacement many times and look where the middle part of the ratios lies.

Samples of one run share what chance gave that process, above all the memory pages its buffers lie in, so they
say nothing about the next run: runs have to be repeated, and drawn again (Kalibera, Jones: Rigorous
Benchmarking in Reasonable Time, 2013). A draw takes runs, one fewer than there are, which makes its variance
that of the mean of few (McCarthy, Snowden: The Bootstrap and Finite Population Sampling, 1985), and then
samples of each.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from llmrun.reports.bench import Spread

OUTLIER_SCORE = 3.5
_NORMAL_QUARTILE = 0.6745
CONFIDENCE = 0.95
RESAMPLES = 4000
LEAST_SAMPLES = 3
"""Fewer say nothing about how far a figure may be off."""
Runs = Sequence[Sequence[float]]
"""Samples of each run."""
_SEED = 1


def spread_of(samples: Sequence[float]) -> Spread:
    """Mean, sample standard deviation (0 for one sample), median, outliers of at least one sample."""
    return Spread(
        statistics.fmean(samples),
        statistics.stdev(samples) if len(samples) > 1 else 0.0,
        statistics.median(samples),
        outliers(samples),
    )


def outliers(samples: Sequence[float]) -> tuple[int, ...]:
    """Indices of samples whose modified z-score is above 3.5; none where most samples are equal."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(sample - middle) for sample in samples)
    if deviation == 0:
        return ()
    scores = (_NORMAL_QUARTILE * abs(sample - middle) / deviation for sample in samples)
    return tuple(index for index, score in enumerate(scores) if score > OUTLIER_SCORE)


def mean_of_runs(runs: Runs) -> float:
    """Every run counts the same, however many samples it has."""
    return statistics.fmean(map(statistics.fmean, runs))


def ratio_interval(first: Runs, second: Runs, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Interval of mean(second) / mean(first); None with fewer than three samples on a side.

    With one run on a side it holds how that side's samples differ, and not how a run differs from the next.
    The random numbers start from a fixed seed, so the same samples give the same interval.
    """
    if min(sum(map(len, first)), sum(map(len, second))) < LEAST_SAMPLES:
        return None
    draw = random.Random(_SEED)
    ratios = sorted(_drawn_mean(second, draw) / _drawn_mean(first, draw) for _ in range(RESAMPLES))
    tail = (1 - confidence) / 2
    return ratios[int(tail * RESAMPLES)], ratios[min(RESAMPLES - 1, int((1 - tail) * RESAMPLES))]


def _drawn_mean(runs: Runs, draw: random.Random) -> float:
    chosen = draw.choices(runs, k=len(runs) - 1) if len(runs) > 1 else runs
    return mean_of_runs([draw.choices(samples, k=len(samples)) for samples in chosen])
