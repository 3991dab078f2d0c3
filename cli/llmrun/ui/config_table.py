"""The table of settings on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line


def print_settings(streams: Streams, rows: Sequence[tuple[str, str, str]]) -> None:
    """Rows of (name, value, source) in columns."""
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [
        f"{one_line(name):<{widths[0]}}  {one_line(value):<{min(widths[1], 24)}}  {one_line(source)}"
        for name, value, source in rows
    ]
    streams.write_text("\n".join(line.rstrip() for line in lines) + "\n")
