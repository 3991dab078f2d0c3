"""Shows two sides of the history of benchmarks beside each other."""

from __future__ import annotations

from llmrun.reports.bench_compare import LEAST_RUNS, Comparison, RatioRow
from llmrun.ui.page import Page
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line


def print_comparison(streams: Streams, comparison: Comparison) -> None:
    """Ratios with their intervals, for a person."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    page = Page(streams)
    first, second = one_line(comparison.first), one_line(comparison.second)
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("test", first, second, "ratio", f"{comparison.confidence:.0%} interval", ""):
        grid.add_column(Text(name), justify="left" if name in ("test", "") else "right")
    for row in comparison.rows:
        interval = "–" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}"
        grid.add_row(
            Text(one_line(row.label)), f"{row.first:.2f}", f"{row.second:.2f}", f"{row.ratio:.3f}", interval,
            Text(_conclusion(row)),
        )  # fmt: skip
    if comparison.rows:
        page.table(grid)
        page.line(f"ratio: tokens a second of {second} over those of {first}")
        page.line(_runs_note(comparison))
    else:
        page.line(f"{first} and {second} have no test in common")
    left_out = comparison.only_first + comparison.only_second
    if left_out:
        said = "1 test is" if left_out == 1 else f"{left_out} tests are"
        page.line(f"{said} on one side only")
    page.flush()


def _runs_note(comparison: Comparison) -> str:
    """How many runs the sides have at least, and what follows from that for the interval."""
    fewest = min(comparison.rows, key=lambda row: min(row.first_runs, row.second_runs))
    counts = ((comparison.first, fewest.first_runs), (comparison.second, fewest.second_runs))
    sides = ", ".join(f"{one_line(name)}: {count} run{'s' * (count != 1)}" for name, count in counts)
    if fewest.over_runs:
        return f"{sides}; the interval holds how runs differ, and how their samples do"
    return (
        f"{sides}; an interval then holds how samples differ, not how a run differs from the next: "
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
