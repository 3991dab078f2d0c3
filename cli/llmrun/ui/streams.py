"""The process's two output streams and what is known about the terminal behind them.

stdout carries model text or data and nothing else, byte for byte; stderr carries everything written for a
person. An object of this kind is handed in, so that tests can hold both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

DUMB_TERMINALS = ("", "dumb", "unknown")
_FALLBACK_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Streams:
    """Binary stdout, text stderr, and whether each is a terminal."""

    out: IO[bytes]
    err: IO[str]
    out_is_terminal: bool
    err_is_terminal: bool
    env: Mapping[str, str]

    @staticmethod
    def of_process() -> Streams:
        """Those of this process; a closed stream counts as no terminal."""
        return Streams(
            sys.stdout.buffer, sys.stderr, _is_terminal(sys.stdout), _is_terminal(sys.stderr), os.environ
        )

    @property
    def err_can_redraw(self) -> bool:
        """True where a line on stderr may be overwritten."""
        return self.err_is_terminal and self.env.get("TERM", "") not in DUMB_TERMINALS

    @property
    def both_can_redraw(self) -> bool:
        """True where answer and figures share a terminal that can be drawn on."""
        return self.out_is_terminal and self.err_can_redraw and not self.plain

    @property
    def plain(self) -> bool:
        """True where colour is not wanted (NO_COLOR, TERM=dumb)."""
        return bool(self.env.get("NO_COLOR")) or self.env.get("TERM", "") in DUMB_TERMINALS

    def write_text(self, text: str) -> None:
        """Write to stdout as UTF-8 and flush, so that a reader sees each piece at once."""
        rest = memoryview(text.encode("utf-8", "backslashreplace"))  # file names may hold what is no text
        while rest:  # unbuffered, a signal or a full disk cuts a write short without an error
            rest = rest[self.out.write(rest) or len(rest) :]
        self.out.flush()

    def error_console(self) -> Console:
        """A Rich console on stderr that never takes text for markup, emoji codes or numbers to colour."""
        from rich.console import Console

        return Console(
            file=self.err,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=False,
            no_color=self.plain,
            force_terminal=self.err_is_terminal or bool(self.env.get("FORCE_COLOR")),
            width=None if self.err_is_terminal else _FALLBACK_COLUMNS,
        )


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
