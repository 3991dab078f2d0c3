"""Shows two sides of the history of benchmarks beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrun.reports.bench_compare import LEAST_RUNS, Comparison, RatioRow
from llmrun.ui.page import Page
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line

if TYPE_CHECKING:
    from rich.table import Table


_GAP, _CONCLUSION = 3, 22
"""Blanks between columns; the least width in which a conclusion reads well."""


def print_comparison(streams: Streams, comparison: Comparison) -> None:
    """Ratios with their intervals, for a person: a table, or a paragraph a test where that is too wide."""
    page = Page(streams)
    first, second = one_line(comparison.first), one_line(comparison.second)
    names = ("test", first, second, "ratio", f"{comparison.confidence:.0%} interval")
    rows = [(_cells(row), _conclusion(row)) for row in comparison.rows]
    widest = [max(map(len, column)) for column in zip(names, *(cells for cells, _ in rows), strict=True)]
    if not rows:
        page.line(f"{first} and {second} have no test in common")
    elif sum(widest) + _GAP * len(widest) + _CONCLUSION <= page.width:
        page.table(_grid(names, rows))
    else:
        for (label, *figures), said in rows:
            parts = (f"{name} {figure}" for name, figure in zip(names[1:], figures, strict=True))
            page.line(f"{label}: {', '.join(parts)}: {said}")
        page.line()
    if rows:
        page.line(f"ratio: tokens a second of {second} over those of {first}")
        page.line(_runs_note(comparison))
    left_out = comparison.only_first + comparison.only_second
    if left_out:
        said = "1 test is" if left_out == 1 else f"{left_out} tests are"
        page.line(f"{said} on one side only")
    page.flush()


def _cells(row: RatioRow) -> tuple[str, ...]:
    interval = "–" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
    return one_line(row.label), f"{row.first:.2f}", f"{row.second:.2f}", f"{row.ratio:.3f}", interval


def _grid(names: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(names):
        grid.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    grid.add_column("")
    for cells, said in rows:
        grid.add_row(*map(Text, (*cells, said)))
    return grid


def _runs_note(comparison: Comparison) -> str:
    """How many runs the sides have at least, and what follows from that for the interval."""
    fewest = min(comparison.rows, key=lambda row: min(row.first_runs, row.second_runs))
    counts = ((comparison.first, fewest.first_runs), (comparison.second, fewest.second_runs))
    sides = ", ".join(f"{one_line(name)}: {count} run{'s' * (count != 1)}" for name, count in counts)
    if fewest.over_runs:
        return f"{sides}; the interval allows for how runs differ"
    return (
        f"{sides}; the interval allows for how samples differ, not for how a run differs from the next: "
        f"measure both at least {LEAST_RUNS} times, each time with --save under the same name"
    )


def _conclusion(row: RatioRow) -> str:
    if row.low is None:
        said = "too few samples"
    elif not row.outside:
        said = "no difference shown"
    else:
        said = ("faster" if row.ratio > 1 else "slower") + ("" if row.over_runs else " in these runs")
    return f"{said} [{', '.join(row.flags)}]" if row.flags else said
