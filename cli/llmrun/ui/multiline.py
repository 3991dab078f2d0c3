"""How a message of several lines is typed: by a backslash at the end of a line, or between triple quotes.

The rules are for text that was typed. What was pasted, recalled or written in an editor is sent as it is.
"""

from __future__ import annotations

import re

QUOTES = '"""'
_OPENED = re.compile(r'(/[A-Za-z]+[ \t]+)?"""')


def ends_in_backslash(text: str) -> bool:
    """True where a backslash asks for a further line. A doubled one does not: it stays as typed."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def without_backslash(text: str) -> str:
    """The text without the backslash that asked for a further line."""
    return text[:-1]


def opens_block(text: str) -> bool:
    """True where the text begins with triple quotes, which a command's name may precede."""
    return _OPENED.match(text) is not None


def block_is_open(text: str) -> bool:
    """True where the block that begins the text has no quotes at the end yet."""
    return not _inside(text)[1].rstrip().endswith(QUOTES)


def block_message(text: str) -> str:
    """The message in a block: without the quotes, and without the line ends next to them."""
    command, inside = _inside(text)
    inner = inside.rstrip().removesuffix(QUOTES)
    return command + inner.removeprefix("\n").removesuffix("\n")


def _inside(text: str) -> tuple[str, str]:
    opened = _OPENED.match(text)
    return (opened[1] or "", text[opened.end() :]) if opened else ("", text)
