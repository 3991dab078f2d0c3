"""Short answers of the program itself, on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.ui.streams import Streams
from llmrun.ui.visible import visible


def columns(rows: Sequence[tuple[str, str]]) -> str:
    """Names and texts in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)


def print_note(streams: Streams, text: str) -> None:
    """Write `text`, dim where the terminal has colours."""
    console = streams.error_console()
    console.print(visible(text), style="dim", soft_wrap=True)
