"""Short questions on the terminal, asked on stderr and answered in one line."""

from __future__ import annotations

import sys

from llmrun.errors import Interrupted
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line


def can_ask(streams: Streams) -> bool:
    """True where somebody sees the question and can answer it."""
    try:
        return streams.err_is_terminal and sys.stdin.isatty()
    except ValueError:  # closed
        return False


def ask_line(streams: Streams, question: str) -> str | None:
    """The answer without blanks around it; None where the user leaves by Ctrl-D.

    Raises:
        Interrupted: Ctrl-C.
    """
    streams.err.write(f"{one_line(question)} ")
    streams.err.flush()
    try:
        line = sys.stdin.buffer.readline()
    except Interrupted:
        streams.err.write("\n")
        raise
    if not line:
        streams.err.write("\n")
        return None
    return line.decode("utf-8", "replace").strip()


def ask_yes(streams: Streams, question: str, *, default: bool) -> bool:
    """A yes or a no; Enter is the default, Ctrl-D a no."""
    choices = "[Y/n]" if default else "[y/N]"
    while True:
        answer = ask_line(streams, f"{question} {choices}")
        if answer is None:
            return False
        if not answer:
            return default
        if answer.lower() in ("y", "yes"):
            return True
        if answer.lower() in ("n", "no"):
            return False
