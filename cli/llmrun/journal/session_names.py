"""Names of sessions, each of which is also the name of a file on every common file system.

Letter case and Unicode composition do not tell two sessions apart: macOS and Windows would put both in one
file, and a folder of sessions may be copied between systems. Names are kept in Unicode normal form C.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Iterator
from datetime import datetime

from llmrun.errors import UsageError
from llmrun.gguf.text import printable

LONGEST_NAME_BYTES = 200
"""In UTF-8; file systems take 255, which leaves room for an ending and a temporary name."""

_SEPARATORS = frozenset('/\\:*?"<>|')
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_HINT = "use letters, digits, blanks and - _ . within the name"


def checked_name(text: str) -> str:
    """`text` as a session's name. Raises UsageError, which says what is wrong, for one that is unsafe."""
    name = unicodedata.normalize("NFC", text)
    problem = _problem(name)
    if problem:
        raise UsageError(f"{quoted(text)} cannot name a session: {problem}", _HINT)
    return name


def _problem(name: str) -> str:
    if not name:
        return "it is empty"
    if name[0] in ".-":
        return f"it starts with {name[0]}"
    if name != name.strip() or name.endswith("."):
        return "it starts or ends with a blank, or ends with a dot"
    for character in name:
        if character in _SEPARATORS:
            return f"it holds {character}"
        # Z: blanks; C: control, format, surrogate, private and unassigned characters
        if character != " " and unicodedata.category(character)[0] in "ZC":
            return f"it holds {printable(character) if not character.isspace() else 'a special blank'}"
    if _DEVICES.fullmatch(name):
        return "Windows keeps that name for a device"
    if (size_bytes := len(name.encode())) > LONGEST_NAME_BYTES:
        return f"it takes {size_bytes} bytes, and {LONGEST_NAME_BYTES} are the most"
    return ""


def name_key(name: str) -> str:
    """Equal for names that one file system or another takes for the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def generated_names(at: datetime) -> Iterator[str]:
    """Names made of date, time and a random part that grows, so that one of them is free."""
    size_bytes = 2
    while True:
        yield f"{at:%Y-%m-%d-%H%M%S}-{secrets.token_hex(size_bytes)}"
        size_bytes += 1


def copy_names(name: str) -> Iterator[str]:
    """NAME-2, NAME-3 and so on; a long NAME is cut."""
    number = 2
    while True:
        end = f"-{number}"
        base = name.encode()[: LONGEST_NAME_BYTES - len(end)].decode(errors="ignore")
        yield base + end
        number += 1


def quoted(name: str) -> str:
    """`name` as messages show it, on one line and without anything a terminal would obey."""
    return f"'{printable(name, 60)}'"
