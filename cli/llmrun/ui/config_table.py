"""The table of settings on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmrun.documents.requests import dump
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line

CONFIG_SCHEMA = "llmrun.config/1"


def print_settings(
    streams: Streams, rows: Sequence[tuple[str, str, str]], values: Mapping[str, object] | None
) -> None:
    """Rows of (name, value, source) in columns, or with `values` one JSON document."""
    if values is not None:
        sources = {name: source for name, _, source in rows}
        streams.write_text(dump({"schema": CONFIG_SCHEMA, "settings": dict(values), "sources": sources}))
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [
        f"{one_line(name):<{widths[0]}}  {one_line(value):<{min(widths[1], 24)}}  {one_line(source)}"
        for name, value, source in rows
    ]
    streams.write_text("\n".join(line.rstrip() for line in lines) + "\n")
