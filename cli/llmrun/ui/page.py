"""A report on stdout: paragraphs broken at the width, tables, and colour where the terminal has it."""

from __future__ import annotations

import io
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from llmrun.ui.streams import Streams

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PLAIN_COLUMNS = 80
WIDEST_TEXT = 110


class Page:
    """Collects what is shown; Rich decides about colour and width."""

    def __init__(self, streams: Streams) -> None:
        from rich.console import Console

        self.streams = streams
        self.width = (
            get_terminal_size((PLAIN_COLUMNS, 24)).columns if streams.out_is_terminal else PLAIN_COLUMNS
        )
        self._buffer = io.StringIO()
        self.console: Console = Console(
            file=self._buffer,
            width=self.width,
            markup=False,
            emoji=False,
            highlight=False,
            no_color=streams.plain,
            force_terminal=streams.out_is_terminal and not streams.plain,
        )

    def line(self, text: str | Text = "", style: str = "") -> None:
        """A paragraph, broken at the width."""
        self.console.print(text, style=style, width=min(self.width, WIDEST_TEXT))

    def table(self, table: Table) -> None:
        """A table and an empty line."""
        self.console.print(table)
        self.line()

    def flush(self) -> None:
        """Write all of it without blanks at the ends of lines."""
        lines = (line.rstrip() for line in self._buffer.getvalue().splitlines())
        self.streams.write_text("\n".join(lines).rstrip("\n") + "\n")
