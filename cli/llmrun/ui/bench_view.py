"""Shows a benchmark: progress with time left on stderr, records on stdout in the format asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING

from llmrun.events import Event, LoadProgress, Notice
from llmrun.reports.bench import (
    BenchFinished,
    BenchProgress,
    BenchReport,
    Chart,
    Measured,
    Record,
    Table,
)
from llmrun.ui.bench_text import measured_text, summary
from llmrun.ui.chart import chart_lines
from llmrun.ui.page import Page
from llmrun.ui.progress import PhaseProgress
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line, visible
from llmrun.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table as RichTable

_MOST_BARS = 24
_GAP = 3
_ALWAYS = ("test", "t/s")
_SPEAKING = ("model", "size", "backend")


@dataclass(frozen=True, slots=True)
class Writers:
    """Text of a format: before everything, for each record as it comes, and at the end."""

    begin: str = ""
    record: Callable[[Record], str] = lambda _: ""
    end: Callable[[BenchReport], str] = lambda _: ""


class BenchView:
    """Takes events one by one. `table` None: data for programs; else it makes the cells of a table."""

    def __init__(
        self,
        streams: Streams,
        writers: Writers,
        *,
        table: Callable[[tuple[Record, ...]], Table] | None,
        charts: Callable[[tuple[Record, ...]], tuple[Chart, ...]],
        quiet: bool,
        verbose: bool,
    ) -> None:
        self._streams, self._writers, self._table, self._charts = streams, writers, table, charts
        self._notes = verbose or (streams.err_is_terminal and not quiet)
        self._verbose = verbose
        self._progress = BenchBar(streams, enabled=not quiet)
        self._begun = False
        self.report: BenchReport | None = None

    def wants(self, event: object) -> bool:
        """Whether `take` would do anything with `event`."""
        return isinstance(event, Notice | LoadProgress | BenchProgress | Measured | BenchFinished)

    def take(self, event: Event | BenchProgress | Measured | BenchFinished) -> None:
        """Write what this event stands for.

        Raises:
            BrokenPipeError: whoever read stdout has gone.
        """
        match event:
            case Notice():
                self._note(event)
            case LoadProgress():
                self._progress.loading(event.fraction)
            case BenchProgress():
                self._progress.show(event)
            case Measured():
                self._write(self._writers.record(event.record))
                if self._notes and self._table is not None:
                    self._say(measured_text(event.record))
            case BenchFinished():
                self.report = event.report
                self._finish(event.report)

    def _note(self, notice: Notice) -> None:
        if notice.level == "warning" or self._verbose:
            prefix = "warning: " if notice.level == "warning" else ""
            self._say(f"{prefix}{notice.text}")

    def _say(self, text: str) -> None:
        self._progress.clear()
        said = visible(text)
        if self._streams.err_is_terminal:
            said = "\n".join(wrap(said, get_terminal_size().columns, break_on_hyphens=False))
        self._streams.err.write(f"{said}\n")
        self._streams.err.flush()

    def _write(self, text: str) -> None:
        if not self._begun and (self._writers.begin or text):
            self._begun = True
            text = self._writers.begin + text
        if text:
            self._progress.clear()
            self._streams.write_text(text)

    def _finish(self, report: BenchReport) -> None:
        self._progress.clear()
        if self._table is not None:
            print_report(self._streams, report, self._table(report.records), self._charts(report.records))
            return
        self._write(self._writers.end(report))
        if self._notes:
            for line in summary(report):
                self._say(line)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._progress.clear()


class BenchBar:
    """One line on stderr: the test under way, how many are done, the time left. Drawn between repetitions."""

    def __init__(self, streams: Streams, *, enabled: bool) -> None:
        self._streams = streams
        self._enabled = enabled and streams.err_can_redraw
        self._loading = PhaseProgress(streams, enabled=enabled)
        self._bar: Progress | None = None

    def loading(self, fraction: float) -> None:
        """`fraction` of the weights are read."""
        self._loading.loading(fraction)

    def show(self, progress: BenchProgress) -> None:
        """What goes on now."""
        self._loading.clear()
        if not self._enabled:
            return
        bar = self._bar or self._start()
        left = "" if progress.left_s is None else f", {format_seconds(progress.left_s)} left"
        share = progress.done / progress.total if progress.total else 0.0
        bar.update(
            bar.task_ids[0], description=one_line(progress.label) + left, completed=share, refresh=True
        )

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.description}"),
        )
        bar = Progress(*columns, console=self._streams.error_console(), transient=True, auto_refresh=False)
        bar.add_task("", total=1.0)
        bar.start()
        self._bar = bar
        return bar

    def clear(self) -> None:
        """Take everything off the screen."""
        self._loading.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def print_report(streams: Streams, report: BenchReport, cells: Table, pictures: tuple[Chart, ...]) -> None:
    """The table, charts and what follows from them, for a person."""
    page = Page(streams)
    shared, cells = _shared_columns(cells, page.width)
    if shared:
        page.line(shared)
    if _width(cells) <= page.width:
        page.table(_grid(cells))
    else:
        for line in _listed(cells):
            page.line(line)
        page.line()
    for chart in pictures:
        if sum(len(series.points) for series in chart.series) > _MOST_BARS:
            continue
        for line in chart_lines(chart, page.width):
            page.line(line)
        page.line()
    for line in summary(report):
        page.line(line)
    page.flush()


def _grid(cells: Table) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, width in zip(cells.names, cells.widths, strict=True):
        grid.add_column(name, justify="left" if width < 0 else "right", no_wrap=True)
    marked = any(cells.marks)
    if marked:
        grid.add_column("", style="yellow")
    for row, marks in zip(cells.rows, cells.marks, strict=True):
        texts = [Text(one_line(cell)) for cell in row]
        grid.add_row(*texts, *([Text(" ".join(marks))] if marked else []))
    return grid


def _listed(cells: Table) -> Iterator[str]:
    """A paragraph a row, where a table would cut its cells short."""
    for row, marks in zip(cells.rows, cells.marks, strict=True):
        named = dict(zip(cells.names, map(one_line, row), strict=True))
        parts = [f"{named.pop('test')}: {named.pop('t/s')} tok/s"]
        parts += [f"{name} {cell}" for name, cell in named.items() if cell]
        yield ", ".join(parts) + (f" [{', '.join(marks)}]" if marks else "")


def _width(cells: Table) -> int:
    """Columns of a terminal that a table takes; marks take one word, since they may be broken."""
    widest = [max(map(len, column)) for column in zip(cells.names, *cells.rows, strict=True)]
    words = [len(mark) for marks in cells.marks for mark in marks]
    return sum(widest) + _GAP * len(widest) + (max(words) + _GAP if words else 0)


def _shared_columns(cells: Table, columns: int) -> tuple[str, Table]:
    """Where the table is too wide, what is the same in every row as a line above it, and the rest."""
    same = [i for i in range(len(cells.names)) if len({row[i] for row in cells.rows}) == 1]
    same = [i for i in same if cells.names[i] not in _ALWAYS]
    if not same or _width(cells) <= columns:
        return "", cells
    shown = [i for i in range(len(cells.names)) if i not in same]
    line = ", ".join(
        one_line(cells.rows[0][i]) if cells.names[i] in _SPEAKING else f"{cells.names[i]} {cells.rows[0][i]}"
        for i in same
    )
    rows = tuple(tuple(row[i] for i in shown) for row in cells.rows)
    return line, Table(
        tuple(cells.names[i] for i in shown), tuple(cells.widths[i] for i in shown), rows, cells.marks
    )
