"""Makes text from models and files safe for a terminal: control characters are shown, not obeyed."""

from __future__ import annotations

_KEPT = "\n\t"
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_DELETE = 0x7F
_VISIBLE = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}  # control pictures
_VISIBLE[_DELETE] = "\u2421"
_VISIBLE.update({code: f"\\x{code:02x}" for code in range(0x80, 0xA0)})  # C1: CSI, OSC and others
_VISIBLE.update({ord(mark): f"\\u{ord(mark):04x}" for mark in _BIDI})


def visible(text: str) -> str:
    """`text` with control characters as pictures (ESC as \u241b) and direction overrides escaped.

    Line feeds and tabs stay. A carriage return before a line feed is dropped.
    """
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def one_line(text: str) -> str:
    """Like `visible`, on a single line."""
    return visible(text.replace("\n", " ").replace("\t", " "))


class VisibleStream:
    """`visible` for a text in pieces: a carriage return at the end of one waits for what follows it."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be shown now."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        return visible(text.removesuffix("\r"))

    def finish(self) -> str:
        """What was held, now that nothing follows."""
        held, self._held = self._held, ""
        return visible(held)
