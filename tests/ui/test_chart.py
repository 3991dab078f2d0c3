"""Charts for a terminal: they fit, and lengths are in proportion."""

from __future__ import annotations

import pytest

from llmrun.reports.bench import Chart, Point, Series
from llmrun.ui.chart import MARK, chart_lines

CHART = Chart(
    "decode over depth", "tokens of context", "tokens a second",
    (Series("tg8", (Point(0, 100.0), Point(1024, 50.0, marked=True))),),
)  # fmt: skip


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_fit(columns: int) -> None:
    assert max(map(len, chart_lines(CHART, columns))) <= columns


def test_half_the_rate_is_half_the_bar() -> None:
    full, half = (line.count("█") for line in chart_lines(CHART, 80)[2:])
    assert full == 2 * half > 0


def test_a_disturbed_figure_is_marked() -> None:
    marked = [line.endswith(MARK) for line in chart_lines(CHART, 80)[2:]]
    assert marked == [False, True]


def test_names_of_places_without_numbers() -> None:
    chart = Chart("t", "", "y", (Series("tg8", (Point(0, 1.0), Point(1, 0.0))),), ("Q4_0", "Q8\x1b[31m_0"))
    lines = chart_lines(chart, 80)
    assert "Q4_0" in lines[2]
    assert "\x1b" not in "".join(lines)
