"""Puts the user's message together from arguments, files and standard input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from llmrun.errors import UsageError
from llmrun.units import MIB, format_bytes

MAX_TEXT_BYTES = 256 * MIB
"""Far more than any context holds; without a bound a device file such as /dev/zero would fill the memory."""
_DOCUMENT_END = "--- end of {} ---"


def text_or_file(value: str) -> str:
    """The value itself, the content of FILE for `@FILE`, or the value less one `@` for `@@...`.

    Raises:
        UsageError: the file cannot be read or is not UTF-8 text.
    """
    if value.startswith("@@"):
        return check_text(value[1:])
    if value.startswith("@"):
        return read_text_file(value[1:], "check the path, or write @@ for a text that begins with @")
    return check_text(value)


def check_text(text: str) -> str:
    """The text itself.

    Raises:
        UsageError: it holds bytes that are not UTF-8, which Python passes on as surrogates.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text is not UTF-8 (character {error.start + 1})",
            "convert it first, for instance with iconv",
        ) from error
    return text


def read_text_file(name: str, hint: str = "check the path") -> str:
    """A text file's content, exactly.

    Raises:
        UsageError: it cannot be read, is too large or not UTF-8; `hint` says what to do if it cannot be read.
    """
    try:
        with Path(name).expanduser().open("rb") as file:
            return read_text(file, name)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder for ~name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot read the file {name!r}: {reason}", hint) from error


def read_text(file: BinaryIO, source: str) -> str:
    """All of a file as text; `source` names it.

    Raises:
        UsageError: it is too large or not UTF-8.
        OSError: it cannot be read.
    """
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise UsageError(
            f"{source} holds more than {format_bytes(MAX_TEXT_BYTES)}, which no context holds",
            "give a part of it",
        )
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x})",
            "convert it first, for instance with iconv -t UTF-8",
        ) from error


def join_prompt(files: Sequence[tuple[str, str]], prompts: Sequence[str], stdin: str | None) -> str:
    """The whole message: each file under its name, the prompts, standard input; blank lines between.

    Documents come first so that questions on the same document share the longest prefix. White space
    around standard input is dropped when there is other text, kept when it is all there is.

    Raises:
        UsageError: nothing but white space is left.
    """
    parts = [f"--- {name} ---\n{text.strip()}\n{_DOCUMENT_END.format(name)}" for name, text in files]
    parts += [text for text in prompts if text.strip()]
    if stdin is not None and stdin.strip():
        parts.append(stdin.strip("\r\n") if parts else stdin)
    if not parts:
        raise UsageError(
            "the prompt is empty",
            "give it after MODEL, with -f FILE, or on standard input; to talk: llmrun chat",
        )
    return "\n\n".join(parts)


def document_ends(message: str) -> list[int]:
    """Places in a message made by `join_prompt` at which a file of it ends."""
    pattern = "^" + re.escape(_DOCUMENT_END).replace(re.escape("{}"), ".+") + "$"
    return [match.end() for match in re.finditer(pattern, message, re.MULTILINE)]
