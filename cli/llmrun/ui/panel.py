"""The panel after an answer: both phases, the cache between them, and what was served from it.

What a person reads first stands first and bold: how fast it talks, and how long it took to begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrun.events import Completion, GenerationStats, KvUse
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BOX_COLUMNS = 60
_BAR_CELLS = 10
_GAP = 2
_FRAME_COLUMNS = 4
_FINISH = {
    "stop": "done",
    "length": "cut at the token limit",
    "context": "context full",
    "interrupted": "interrupted",
}


def panel_rows(completion: Completion) -> list[tuple[str, str, str]]:
    """Rows of (label, figure, detail), most important first."""
    stats, kv = completion.stats, completion.kv
    rows = [
        ("generation", format_rate(stats.generation_rate), _generation_detail(stats)),
        ("prompt eval", format_rate(stats.prefill_rate), _prefill_detail(stats)),
    ]
    ttft = "–" if stats.ttft_s is None else format_seconds(stats.ttft_s)
    rows.append(("TTFT", ttft, f"total {format_seconds(stats.total_s)}"))
    rows += [("KV cache", *_kv_figures(kv, index)) for index in range(len(kv.devices))]
    rows.append(("prefix cache", _prefix_figure(stats), _prefix_detail(completion)))
    rows.append(("finish", _FINISH[completion.finish_reason], _settings_detail(completion)))
    return rows


def _generation_detail(stats: GenerationStats) -> str:
    tokens = f"{format_count(stats.generated_tokens)} tokens"
    if stats.reasoning_tokens:
        tokens += f" ({format_count(stats.reasoning_tokens)} reasoning)"
    return f"{tokens}, {format_seconds(stats.itl.mean_s)} each" if stats.itl else tokens


def _prefill_detail(stats: GenerationStats) -> str:
    return f"{format_count(stats.prefill_tokens)} tokens in {format_seconds(stats.prefill_s)}"


def _kv_figures(kv: KvUse, index: int) -> tuple[str, str]:
    device = kv.devices[index]
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.allocated_bytes)}"
    where = f"on {one_line(device.device)}"
    if index:
        return used, where
    return used, f"{where}  {_bar(kv)} {format_count(kv.tokens)}/{format_count(kv.capacity_tokens)} tokens"


def _bar(kv: KvUse) -> str:
    share = kv.tokens / kv.capacity_tokens if kv.capacity_tokens else 0.0
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return "▕" + "█" * filled + "░" * (_BAR_CELLS - filled) + "▏"


def _prefix_figure(stats: GenerationStats) -> str:
    return f"{format_count(stats.cached_tokens)} of {format_count(stats.prompt_tokens)}"


def _prefix_detail(completion: Completion) -> str:
    reason = completion.prefix.miss_reason
    return f"prompt tokens reused ({reason})" if reason else "prompt tokens reused"


def _settings_detail(completion: Completion) -> str:
    threads = completion.settings.get("n_threads")
    return f"{threads} threads" if threads else ""


def panel(completion: Completion, columns: int) -> RenderableType:
    """The panel for a terminal of `columns`; a plain list where a box would not fit."""
    from rich.table import Table
    from rich.text import Text

    rows = panel_rows(completion)
    boxed = columns >= BOX_COLUMNS
    grid = Table.grid(padding=(0, _GAP))
    taken = sum(max(len(row[column]) for row in rows) + _GAP for column in (0, 1)) + _FRAME_COLUMNS
    for index, (label, figure, detail) in enumerate(rows):
        cells = [Text(label, style="dim"), Text(figure, style="bold green" if index == 0 else "bold")]
        if boxed:
            note = Text(detail, style="dim")
            note.truncate(columns - taken, overflow="ellipsis")
            cells.append(note)
        grid.add_row(*cells)
    return _boxed(grid, completion) if boxed else grid


def _boxed(grid: RenderableType, completion: Completion) -> RenderableType:
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.text import Text

    title = Text(f" {_short_name(completion)} ", style="bold")
    return Panel(grid, title=title, title_align="left", box=ROUNDED, border_style="dim", expand=False)


def _short_name(completion: Completion) -> str:
    """What the user called the model, a file without its folders, and its quantization once."""
    model = completion.model
    name = one_line(model.ref.replace("\\", "/").rsplit("/", 1)[-1])
    return name if model.quant.lower() in name.lower() else f"{name} {one_line(model.quant)}"


def plain_lines(completion: Completion) -> list[str]:
    """The same figures as plain lines, for logs and terminals without colour."""
    return [f"{label}: {figure} {detail}".rstrip() for label, figure, detail in panel_rows(completion)]


def print_panel(console: Console, completion: Completion, *, as_lines: bool) -> None:
    """Write the panel, or plain lines where a panel would be noise."""
    if as_lines:
        for line in plain_lines(completion):
            console.print(line, soft_wrap=True)
    else:
        console.print(panel(completion, console.width))
