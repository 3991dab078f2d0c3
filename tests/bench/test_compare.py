"""Two runs beside each other."""

from __future__ import annotations

import pytest

from llmrun.bench.compare import Side, compare
from llmrun.bench.records import record_document
from llmrun.reports.bench import Record
from llmrun.reports.bench_compare import Comparison

from tests.support.bench import pp, tg


def side(*runs: list[Record]) -> Side:
    return Side("a", [[*map(record_document, run)] for run in runs])


def compared(first: list[Record], second: list[Record]) -> Comparison:
    return compare(side(first), side(second))


def test_a_ratio_of_each_test_both_have() -> None:
    found = compared([pp(8, 10, 11, 9), tg(4)], [pp(8, 20, 22, 18), pp(16)])
    (row,) = found.rows
    assert (row.label, row.first, row.second, row.ratio) == ("pp8", 10, 20, 2)
    assert row.outside
    assert row.low is not None
    assert row.high is not None
    assert row.low <= 2 <= row.high
    assert (found.only_first, found.only_second) == (1, 1)


def test_runs_that_differ_in_a_setting_are_matched() -> None:
    found = compared([pp(8, n_threads=1)], [pp(8, n_threads=2)])
    assert [row.label for row in found.rows] == ["pp8"]


def test_what_varies_within_a_run_tells_its_tests_apart() -> None:
    found = compared(
        [pp(8, 1, 1, 1, n_threads=1), pp(8, 2, 2, 2, n_threads=2)],
        [pp(8, 4, 4, 4, n_threads=2), pp(8, 3, 3, 3, n_threads=1)],
    )
    assert [(row.label, row.ratio) for row in found.rows] == [("1 pp8", 3), ("2 pp8", 2)]


def test_too_few_samples_show_nothing() -> None:
    (row,) = compared([pp(8, 10, 10)], [pp(8, 20, 20)]).rows
    assert (row.low, row.high, row.outside, row.shown) == (None, None, False, False)


LOW, HIGH = [pp(8, 100, 101, 99)], [pp(8, 110, 111, 109)]


def test_one_run_a_side_shows_nothing_of_the_next_run() -> None:
    (row,) = compare(side(LOW), side(HIGH)).rows
    assert (row.first_runs, row.second_runs, row.outside, row.over_runs, row.shown) == (
        1, 1, True, False, False,
    )  # fmt: skip


def test_what_differs_as_much_from_run_to_run_is_no_difference() -> None:
    """Samples of each run lie close together, so that within the runs any two seem different."""
    (row,) = compare(side(LOW, HIGH, LOW), side(HIGH, LOW, HIGH)).rows
    assert (row.first_runs, row.second_runs) == (3, 3)
    assert row.over_runs
    assert not row.outside
    (alone,) = compare(side(LOW), side(HIGH)).rows
    assert alone.outside


def test_a_difference_that_holds_over_runs_is_shown() -> None:
    (row,) = compare(side(LOW, LOW, LOW), side(HIGH, HIGH, HIGH)).rows
    assert row.shown
    assert row.ratio == pytest.approx(1.1)


def test_every_run_counts_the_same_however_many_samples_it_has() -> None:
    (row,) = compare(side([pp(8, *[10] * 9)], [pp(8, 20)]), side(LOW)).rows
    assert row.first == 15


def test_only_runs_of_the_newest_setup_count() -> None:
    other = [pp(8, 50, 50, 50, n_threads=1)]
    (row,) = compare(side(other, LOW, [tg(4)], LOW), side(HIGH)).rows
    assert (row.first_runs, row.first) == (2, 100)
    (row,) = compare(side(LOW, other), side(HIGH)).rows
    assert (row.first_runs, row.first) == (1, 50)


def test_marks_of_either_side_are_kept() -> None:
    (row,) = compared([pp(8, flags=("busy",))], [pp(8, flags=("spread",))]).rows
    assert row.flags == ("busy", "spread")


def test_records_of_an_older_kind_do_not_break_it() -> None:
    old = Side("a", [[{"test": "pp8", "samples_ts": [1.0, "x", None, 2.0]}]])
    assert compare(old, side([pp(8)])).rows[0].first == 1.5


def test_a_test_without_samples_is_no_row() -> None:
    assert not compare(Side("a", [[{"test": "pp8", "samples_ts": []}]]), side([pp(8)])).rows
