"""How interleaved series are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stats import difference, ratio

rates = st.floats(min_value=0.1, max_value=1e4)


def test_ratio_gives_the_medians_and_the_pairs() -> None:
    found = ratio([100.0, 50.0, 90.0], [80.0, 100.0, 60.0])
    assert found.of_medians == 90 / 80
    assert found.paired_median == 100 / 80
    assert (found.paired_min, found.paired_max) == (0.5, 1.5)


def test_difference_is_first_less_second() -> None:
    found = difference([0.5, 0.3, 0.4], [0.25, 0.25, 0.5])
    assert found.of_medians == pytest.approx(0.15)
    assert found.paired_median == pytest.approx(0.05)
    assert [found.paired_min, found.paired_max] == pytest.approx([-0.1, 0.25])


def test_one_disturbed_round_moves_no_median() -> None:
    quiet = ratio([100.0] * 5, [50.0] * 5)
    disturbed = ratio([100.0, 100.0, 3.0, 100.0, 100.0], [50.0] * 5)
    assert (disturbed.of_medians, disturbed.paired_median) == (quiet.of_medians, quiet.paired_median)


@given(st.lists(st.tuples(rates, rates), min_size=1), st.floats(min_value=0.1, max_value=10))
def test_a_drift_common_to_both_sides_of_a_round_leaves_the_pairs(
    pairs: list[tuple[float, float]], drift: float
) -> None:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    before = ratio(first, second)
    after = ratio([a * drift for a in first], [b * drift for b in second])
    assert after.paired_median == pytest.approx(before.paired_median)
    assert before.paired_min <= before.paired_median <= before.paired_max


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 2.0])])
def test_series_without_pairs_are_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="in pairs"):
        ratio(first, second)
