"""Short answers of the program itself, on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.ui.streams import Streams
from llmrun.ui.visible import visible


def print_note(streams: Streams, text: str) -> None:
    """Write `text`, dim where the terminal has colours."""
    streams.error_console().print(visible(text), style="dim", soft_wrap=True)


def print_rows(streams: Streams, rows: Sequence[tuple[str, str]]) -> None:
    """Names and texts in two columns, long texts wrapped inside theirs."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(visible(name)), Text(visible(text), overflow="fold"))
    streams.error_console().print(grid, style="dim")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with columns under each other, two blanks apart."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_padded, row, widths)).rstrip() for row in rows]


def _padded(cell: str, columns: int) -> str:
    from rich.cells import cell_len

    return cell + " " * (columns - cell_len(cell))
