"""The panel under an answer: both phases, the cache between them, and what was served from it.

What a person reads first stands first and bold: how fast it talks, how fast it reads, and how long it took
to begin. The same rows serve the live panel, the final one, one plain line, and logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Literal

from llmrun.events import Completion, ContextUse, GenerationStats, KvUse, Measured, PrefixReport
from llmrun.ui.bar import bar
from llmrun.ui.context_view import context_figures
from llmrun.ui.model_name import model_title
from llmrun.ui.visible import one_line
from llmrun.units import (
    format_bytes,
    format_count,
    format_counted,
    format_rate,
    format_seconds,
    format_tokens,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PanelMode = Literal["full", "line", "off"]

BOX_COLUMNS = 60
_BAR_CELLS = 10
_PART_ENDS = re.compile(r", |  | \(| tokens\Z")
_GAP = 2
_FRAME_COLUMNS = 4
_FINISH = {
    "stop": "done",
    "length": "cut at the token limit",
    "context": "context full",
    "interrupted": "interrupted",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a panel shows. `status` is the phase under way or how the request ended."""

    title: str
    status: str
    stats: GenerationStats
    prefix: PrefixReport
    kv: KvUse
    n_threads: int
    context: ContextUse | None = None

    @staticmethod
    def of_completion(completion: Completion) -> Figures:
        """Those of a finished request."""
        c = completion
        threads = c.settings.get("n_threads")
        n_threads = threads if isinstance(threads, int) else 0
        status = _FINISH[c.finish_reason]
        return Figures(model_title(c.model), status, c.stats, c.prefix, c.kv, n_threads, c.context)

    @staticmethod
    def of_measured(measured: Measured, title: str, status: str, n_threads: int) -> Figures:
        """Those of a request under way."""
        m = measured
        return Figures(title, status, m.stats, m.prefix, m.kv, n_threads, m.context)


def panel_rows(figures: Figures, *, name_devices: bool = False) -> list[tuple[str, str, str]]:
    """Rows of (label, figure, detail), most important first; `name_devices` in labels, not in details."""
    stats, kv = figures.stats, figures.kv
    ttft = "–" if stats.ttft_s is None else format_seconds(stats.ttft_s)
    rows = [
        ("generation", format_rate(stats.generation_rate), _generation_detail(stats)),
        ("prompt eval", format_rate(stats.prefill_rate), _prefill_detail(stats)),
        ("TTFT", ttft, f"total {format_seconds(stats.total_s)}"),
    ]
    if stats.reasoning_tokens:
        rows.append(("thought", *_thought(stats)))
    for index, device in enumerate(kv.devices):
        label = f"KV {one_line(device.device)}" if name_devices else "KV cache"
        rows.append((label, *_kv_figures(kv, index)))
    if figures.context is not None:
        rows.append(("context", *context_figures(figures.context)))
    rows.append(("prefix cache", _prefix_figure(stats), _prefix_detail(figures.prefix)))
    threads = format_counted(figures.n_threads, "thread") if figures.n_threads else ""
    rows.append(("status", figures.status, threads))
    return rows


def _generation_detail(stats: GenerationStats) -> str:
    tokens = format_tokens(stats.generated_tokens)
    return f"{tokens}, {format_seconds(stats.itl.mean_s)} each" if stats.itl else tokens


def _thought(stats: GenerationStats) -> tuple[str, str]:
    """Time and tokens up to the answer proper, or so far."""
    begun_s = stats.ttft_s or 0.0
    ended_s = stats.total_s if stats.ttft_answer_s is None else stats.ttft_answer_s
    return format_seconds(max(0.0, ended_s - begun_s)), format_tokens(stats.reasoning_tokens)


def _prefill_detail(stats: GenerationStats) -> str:
    took = format_seconds(stats.prefill_s)
    if not stats.prefill_complete:
        return f"stopped after {took}, {format_tokens(stats.prefill_tokens)} to read"
    return f"{format_tokens(stats.prefill_tokens)} in {took}"


def _kv_figures(kv: KvUse, index: int) -> tuple[str, str]:
    device = kv.devices[index]
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.allocated_bytes)}"
    where = f"on {one_line(device.device)}"
    if index:
        return used, where
    return used, f"{where}  {_bar(kv)} {format_count(kv.tokens)}/{format_tokens(kv.capacity_tokens)}"


def _bar(kv: KvUse) -> str:
    return bar(kv.tokens / kv.capacity_tokens if kv.capacity_tokens else 0.0, _BAR_CELLS)


def _prefix_figure(stats: GenerationStats) -> str:
    return f"{format_count(stats.cached_tokens)} of {format_count(stats.prompt_tokens)}"


def _prefix_detail(prefix: PrefixReport) -> str:
    origin = (
        " from disk" if prefix.disk_tokens else " through a checkpoint" if prefix.checkpoint_tokens else ""
    )
    reused = f"prompt tokens reused{origin}"
    return f"{reused} ({prefix.miss_reason})" if prefix.miss_reason else reused


def one_line_figures(figures: Figures, columns: int | None = None) -> str:
    """The most important figures on one line, as many as fit into `columns`."""
    stats, kv = figures.stats, figures.kv
    used, allocated = format_bytes(kv.used_bytes), format_bytes(kv.allocated_bytes)
    parts = [
        f"{format_rate(stats.generation_rate)} generation",
        figures.status,
        "TTFT –" if stats.ttft_s is None else f"TTFT {format_seconds(stats.ttft_s)}",
        f"{format_rate(stats.prefill_rate)} prompt eval",
        f"KV {used} of {allocated}",
        f"{_prefix_figure(stats)} cached",
    ]
    lines = [" · ".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((line for line in lines if columns is None or len(line) <= columns), lines[-1])


def plain_lines(figures: Figures) -> list[str]:
    """The same figures as plain lines, for logs and terminals without colour."""
    return [
        f"{label}: {figure}, {detail}" if detail else f"{label}: {figure}"
        for label, figure, detail in panel_rows(figures)
    ]


def panel(figures: Figures, columns: int) -> RenderableType:
    """The panel for a terminal of `columns`; a plain list where a box would not fit."""
    if columns < BOX_COLUMNS:
        return _grid(figures, columns, details=False)
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.text import Text

    title = Text(f" {figures.title} ", style="bold")
    grid = _grid(figures, columns, details=True)
    return Panel(grid, title=title, title_align="left", box=ROUNDED, border_style="dim", expand=False)


def _grid(figures: Figures, columns: int, *, details: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    rows = panel_rows(figures, name_devices=not details)
    grid = Table.grid(padding=(0, _GAP))
    taken = sum(max(len(row[column]) for row in rows) + _GAP for column in (0, 1)) + _FRAME_COLUMNS
    for index, (label, figure, detail) in enumerate(rows):
        cells = [Text(label, style="dim"), Text(figure, style="bold green" if index == 0 else "bold")]
        if details:
            cells.append(Text(fitting(detail, columns - taken), style="dim"))
        grid.add_row(*cells)
    return grid


def fitting(detail: str, columns: int) -> str:
    """As many parts of `detail` as fit: half a figure would be read as another one."""
    ends = [match.start() for match in _PART_ENDS.finditer(detail)] + [len(detail)]
    return detail[: max((end for end in ends if end <= columns), default=0)]


def print_panel(console: Console, completion: Completion, mode: PanelMode, *, as_lines: bool) -> None:
    """Write the panel, or plain lines where a panel would be noise."""
    figures = Figures.of_completion(completion)
    if mode == "line":
        columns = None if as_lines else console.width
        console.print(one_line_figures(figures, columns), style="dim", soft_wrap=True)
    elif mode == "full" and as_lines:
        for line in plain_lines(figures):
            console.print(line, soft_wrap=True)
    elif mode == "full":
        console.print(panel(figures, console.width))


def rendered_lines(renderable: RenderableType, columns: int, *, no_color: bool) -> list[str]:
    """A renderable as finished terminal lines, none wider than `columns`."""
    from rich.console import Console

    target = StringIO()
    console = Console(
        file=target, width=columns, force_terminal=True, no_color=no_color, markup=False, emoji=False,
        highlight=False,
    )  # fmt: skip
    console.print(renderable)
    return target.getvalue().splitlines()
