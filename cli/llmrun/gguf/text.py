"""Text from a file or a command line, made safe to quote in one line of a message."""

from __future__ import annotations


def printable(text: str, limit: int = 120) -> str:
    """`text` with control, bidi and unassigned characters escaped, and cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
