"""Two runs beside each other."""

from __future__ import annotations

from llmrun.bench.compare import compare
from llmrun.bench.records import record_document
from llmrun.reports.bench import Comparison, Record

from tests.support.bench import pp, tg


def compared(first: list[Record], second: list[Record]) -> Comparison:
    return compare(("a", [*map(record_document, first)]), ("b", [*map(record_document, second)]))


def test_a_ratio_of_each_test_both_have() -> None:
    found = compared([pp(8, 10, 11, 9), tg(4)], [pp(8, 20, 22, 18), pp(16)])
    (row,) = found.rows
    assert (row.label, row.first, row.second, row.ratio) == ("pp8", 10, 20, 2)
    assert row.shown
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
    assert (row.low, row.high, row.shown) == (None, None, False)


def test_marks_of_either_side_are_kept() -> None:
    (row,) = compared([pp(8, flags=("busy",))], [pp(8, flags=("spread",))]).rows
    assert row.flags == ("busy", "spread")


def test_records_of_an_older_kind_do_not_break_it() -> None:
    found = compare(
        ("a", [{"test": "pp8", "samples_ts": [1.0, "x", None, 2.0]}]), ("b", [record_document(pp(8))])
    )
    assert found.rows[0].first == 1.5
