"""Statistics against worked examples and laws."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.bench.stats import mean_of_runs, outliers, ratio_interval, spread_of

RATES = st.lists(st.floats(0.1, 1e5), min_size=1, max_size=30)


def test_a_worked_example() -> None:
    spread = spread_of([100.0, 102.0, 98.0, 100.0, 60.0])
    assert (spread.mean, spread.median) == (92.0, 100.0)
    assert spread.stddev == pytest.approx(17.944, abs=1e-3)
    assert spread.relative == pytest.approx(0.195, abs=1e-3)
    assert spread.outliers == (4,)


def test_one_sample_has_no_spread() -> None:
    spread = spread_of([5.0])
    assert (spread.mean, spread.stddev, spread.median, spread.outliers, spread.relative) == (5, 0, 5, (), 0)


def test_the_modified_score_of_the_literature() -> None:
    """Data of Iglewicz and Hoaglin's kind: MAD 1, so 0.6745 x distance above 3.5 means further than 5.19."""
    data = [10.0, 11.0, 9.0, 10.0, 11.0, 9.0, 10.0]
    assert outliers([*data, 15.1]) == ()
    assert outliers([*data, 15.3]) == (7,)


@given(RATES)
def test_the_mean_and_median_lie_within_the_samples(rates: list[float]) -> None:
    spread = spread_of(rates)
    for middle in (spread.mean, spread.median):
        assert min(rates) * (1 - 1e-9) <= middle <= max(rates) * (1 + 1e-9)


@given(RATES)
def test_fewer_than_half_are_outliers(rates: list[float]) -> None:
    assert len(outliers(rates)) <= len(rates) / 2


def test_equal_runs_show_no_difference() -> None:
    rates = [100.0, 101.0, 99.0, 100.5, 99.5]
    interval = ratio_interval([rates], [rates])
    assert interval is not None
    assert interval[0] < 1 < interval[1]


def test_a_large_difference_is_shown_and_repeats() -> None:
    slow, fast = [[100.0, 101.0, 99.0]], [[120.0, 121.0, 119.0]]
    interval = ratio_interval(slow, fast)
    assert interval == ratio_interval(slow, fast)
    assert interval is not None
    assert 1.15 < interval[0] <= 1.2 <= interval[1] < 1.25


@pytest.mark.parametrize(("first", "second"), [([1.0, 2.0], [1.0] * 5), ([1.0] * 5, [2.0]), ([], [])])
def test_too_few_samples_give_no_interval(first: list[float], second: list[float]) -> None:
    assert ratio_interval([first], [second]) is None


def test_intervals_of_the_same_machine_hold_one_most_of_the_time() -> None:
    """The percentile bootstrap of ten samples a side covers some 90 % where 95 % are claimed."""
    draw = random.Random(7)
    held = 0
    for _ in range(60):
        first, second = ([draw.gauss(100, 3) for _ in range(10)] for _ in range(2))
        low, high = ratio_interval([first], [second]) or (0.0, 0.0)
        assert low <= statistics.fmean(second) / statistics.fmean(first) <= high
        held += low <= 1 <= high
    assert held >= 48


def test_intervals_over_runs_hold_what_chance_gave_each_run() -> None:
    """Five runs a side of the same machine, whose samples differ far less than runs do."""
    draw = random.Random(7)

    def runs() -> list[list[float]]:
        centres = [draw.gauss(100, 5) for _ in range(5)]
        return [[draw.gauss(centre, 0.5) for _ in range(3)] for centre in centres]

    held = held_by_one_run = 0
    for _ in range(20):
        first, second = runs(), runs()
        low, high = ratio_interval(first, second) or (0.0, 0.0)
        assert low <= mean_of_runs(second) / mean_of_runs(first) <= high
        held += low <= 1 <= high
        low, high = ratio_interval(first[:1], second[:1]) or (0.0, 0.0)
        held_by_one_run += low <= 1 <= high
    assert held >= 17
    assert held_by_one_run < 10
