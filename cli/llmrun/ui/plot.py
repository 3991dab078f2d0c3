"""Charts as pictures, drawn by matplotlib where it is installed (the extra `plot`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrun.bench_report import Chart
from llmrun.errors import UsageError, WriteFailure

ENDINGS = (".png", ".svg")
_WIDTH_IN, _HEIGHT_IN, _DPI = 7.0, 4.2, 150
_BAR_SHARE = 0.8


def check_plot(path: Path) -> None:
    """Refuse, before anything is measured, a picture that could not be drawn.

    Raises:
        UsageError: another ending than .png or .svg, no such folder, or matplotlib is missing.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot cannot write {path.name!r}", f"end the name in {' or '.join(ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of {str(path)!r} does not exist", "make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib", "install llmrun with its extra: pip install 'llmrun[plot]'"
        )


def save_plot(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts below each other.

    Raises:
        UsageError: there is nothing to draw.
        WriteFailure: the file cannot be written.
    """
    if not charts:
        raise UsageError(
            "there is nothing to plot: neither depth, sequences nor models vary",
            "give -d, --parallel or MODEL several values",
        )
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
    width = _BAR_SHARE / len(chart.series)
    for index, series in enumerate(chart.series):
        x, y = [point[0] for point in series.points], [point[1] for point in series.points]
        if chart.ticks:
            shift = (index - (len(chart.series) - 1) / 2) * width
            axes.bar([place + shift for place in x], y, width, label=series.name)
        else:
            axes.plot(x, y, marker="o", label=series.name)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), chart.ticks)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
