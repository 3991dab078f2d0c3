"""Charts as pictures, drawn by matplotlib where it is installed (the extra `plot`)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrun.errors import UsageError, WriteFailure
from llmrun.reports.bench import Chart

ENDINGS = (".png", ".svg")
_WIDTH_IN, _HEIGHT_IN, _DPI = 7.5, 3.6, 150
_BAR_SHARE = 0.8


def check_plot(path: Path, *, varied: bool) -> None:
    """Refuse, before anything is measured, a picture that could not be drawn.

    Raises:
        UsageError: another ending than .png or .svg, no such folder, nothing to draw the rates over, or
            matplotlib is missing.
        WriteFailure: nothing can be written there.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot cannot write {path.name!r}", f"end the name in {' or '.join(ENDINGS)}")
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        raise UsageError(f"the folder of {str(path)!r} does not exist", "make it first")
    there = path if os.path.lexists(path) else folder
    if os.path.isdir(path) or not os.access(there, os.W_OK):
        raise WriteFailure(f"cannot write {path}", "check the folder's permissions")
    if not varied:
        raise UsageError(
            "there is nothing to plot: neither depth, sequences nor models vary",
            "give -d, --parallel or MODEL several values",
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib", "install llmrun with its extra: pip install 'llmrun[plot]'"
        )


def save_plot(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts, at least one, below each other.

    Raises:
        WriteFailure: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN * len(charts)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        _draw(axes, chart)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise WriteFailure(
            f"cannot write {path}: {error.strerror}", "check the folder's permissions"
        ) from error


def _draw(axes: Any, chart: Chart) -> None:
    """Lines over numbers, groups of bars over names; rates from 0 up, so that heights compare."""
    draw = _bars if chart.ticks else _lines
    draw(axes, chart)
    marked = any(point.marked for series in chart.series for point in series.points)
    look = "hatched" if chart.ticks else "hollow"
    note = f"\n{look}: something may have disturbed the figure" if marked else ""
    axes.set(title=chart.title, xlabel=f"{chart.x_label}{note}".strip(), ylabel=chart.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _lines(axes: Any, chart: Chart) -> None:
    """A point for each figure with its standard deviation, hollow where it is marked."""
    for series in chart.series:
        places = [point.x for point in series.points]
        rates, spreads = [point.rate for point in series.points], [point.stddev for point in series.points]
        drawn = axes.errorbar(places, rates, yerr=spreads, capsize=3, marker="o", label=series.name)
        hollow = [(point.x, point.rate) for point in series.points if point.marked]
        if hollow:
            colour = drawn.lines[0].get_color()
            axes.plot(*zip(*hollow, strict=True), "o", markerfacecolor="white", color=colour, zorder=3)
    axes.set_xticks(sorted({point.x for series in chart.series for point in series.points}))
    axes.xaxis.set_major_formatter("{x:g}")


def _bars(axes: Any, chart: Chart) -> None:
    """A group at each name, hatched where a figure is marked."""
    width = _BAR_SHARE / len(chart.series)
    for index, series in enumerate(chart.series):
        shift = (index - (len(chart.series) - 1) / 2) * width
        places = [point.x + shift for point in series.points]
        rates, spreads = [point.rate for point in series.points], [point.stddev for point in series.points]
        bars = axes.bar(places, rates, width, yerr=spreads, capsize=3, label=series.name)
        for bar, point in zip(bars, series.points, strict=True):
            bar.set_hatch("//" if point.marked else "")
    axes.set_xticks(range(len(chart.ticks)), chart.ticks)
