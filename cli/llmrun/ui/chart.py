"""Charts for a terminal: one bar a point, so that they read at any width and in logs."""

from __future__ import annotations

from llmrun.reports.bench import Chart, Series
from llmrun.ui.visible import one_line
from llmrun.units import format_rate

_BAR = "█"
_HALF = "▌"
MARK = " !"
"""After a rate that something may have disturbed."""
_LEAST_BAR, _MOST_BAR = 8, 60
_GAPS = 4


def chart_lines(chart: Chart, columns: int) -> list[str]:
    """The chart as lines of at most `columns` characters."""
    lines = [f"{chart.title} ({chart.x_label or chart.y_label})"]
    for series in chart.series:
        lines += [one_line(series.name), *_series_lines(series, chart, columns)]
    return lines


def _series_lines(series: Series, chart: Chart, columns: int) -> list[str]:
    labels = [_label(point.x, chart) for point in series.points]
    values = [format_rate(point.rate) + (MARK if point.marked else "") for point in series.points]
    taken = max(map(len, labels)) + max(map(len, values)) + _GAPS
    cells = min(_MOST_BAR, max(_LEAST_BAR, columns - taken))
    most = max(point.rate for point in series.points) or 1.0
    width = max(map(len, labels))
    return [
        f"  {label:>{width}} {_bar(point.rate / most, cells)} {value}"
        for label, value, point in zip(labels, values, series.points, strict=True)
    ]


def _label(x: float, chart: Chart) -> str:
    return one_line(chart.ticks[int(x)]) if chart.ticks else f"{x:g}"


def _bar(share: float, cells: int) -> str:
    halves = round(share * cells * 2)
    return (_BAR * (halves // 2) + _HALF * (halves % 2)).ljust(cells)
