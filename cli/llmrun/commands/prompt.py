"""Reads what the user asks from the command line and standard input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TextIO

from llmrun.app.prompt_input import join_prompt, read_text, read_text_file, text_or_file
from llmrun.errors import UsageError


def gather_prompt(
    words: Sequence[str], prompt: str | None, files: Sequence[str], stdin: TextIO | None
) -> str:
    """The whole prompt; `stdin` None leaves standard input alone.

    Raises:
        UsageError: a file cannot be read, something is not UTF-8, or there is no text at all.
    """
    named = [(name, read_text_file(name)) for name in files]
    parts = [*_argument_parts(words), *([text_or_file(prompt)] if prompt is not None else [])]
    return join_prompt(named, parts, read_stdin(stdin))


def _argument_parts(words: Sequence[str]) -> list[str]:
    """Words without quotes around them belong together; an @FILE stands for itself."""
    parts: list[str] = []
    for is_file, group in groupby(words, key=lambda word: word.startswith("@") and not word.startswith("@@")):
        texts = [text_or_file(word) for word in group]
        parts += texts if is_file else [" ".join(texts)]
    return parts


def read_stdin(stdin: TextIO | None) -> str | None:
    """All of standard input when something is piped in, None when it is a terminal or closed.

    Raises:
        UsageError: it cannot be read, is too large or not UTF-8.
    """
    if stdin is None or stdin.closed or stdin.isatty():
        return None
    try:
        return read_text(stdin.buffer, "standard input")
    except OSError as error:  # open for writing only, for one
        raise UsageError(
            f"cannot read standard input: {error.strerror}",
            "redirect it from a file or a pipe that can be read",
        ) from error


def system_text(flags: Mapping[str, object]) -> dict[str, object]:
    """The flags with `--system @FILE` replaced by the file's text."""
    system = flags["system"]
    return {**flags, "system": text_or_file(system) if isinstance(system, str) else None}
