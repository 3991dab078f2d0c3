"""The message a user types in a chat. Drawn on stderr, so that stdout stays the model's.

On a terminal it is an editor with history, search, completion and several lines; where lines cannot be
redrawn it reads plain lines. The rules for several lines (multiline.py) are the same in both.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.ui.multiline import (
    block_is_open,
    block_message,
    ends_in_backslash,
    opens_block,
    without_backslash,
)
from llmrun.ui.prompt import CONTINUATION, PROMPT
from llmrun.ui.visible import visible

if TYPE_CHECKING:
    from llmrun.ui.completion import CompletionFacts
    from llmrun.ui.history_file import HistoryFile
    from llmrun.ui.prompt_session import EditedPrompt

_DUMB_TERMINALS = ("dumb", "unknown")


class LineEditor:
    """Reads one message at a time.

    `history_path` is the file of earlier entries, None for no file. It must not be shared with other data.
    """

    def __init__(self, history_path: Path | None, facts: CompletionFacts) -> None:
        self._history_path = history_path
        self._facts = facts
        self._history: HistoryFile | None = None
        self._edited: EditedPrompt | None = None

    def prepare(self) -> None:
        """Do now what the first `read` would have to do first: import the editor and read the history.

        That takes about 0.1 s, unnoticed while a model loads. Nothing is drawn.
        """
        if self._edited is None and _can_edit():
            from llmrun.ui.history_file import HistoryFile
            from llmrun.ui.prompt_session import EditedPrompt

            self._history = HistoryFile(self._history_path) if self._history_path else None
            self._edited = EditedPrompt(self._history, self._facts)

    def take_notes(self) -> list[str]:
        """Sentences about the history file that the user should see, each once."""
        if self._history is None:
            return []
        notes, self._history.notes = self._history.notes, []
        return notes

    def read(self, default: str = "") -> str:
        """The next message, with `default` to be edited; valid Unicode, line feeds between lines.

        Raises:
            EOFError: Ctrl-D with nothing typed, or the end of the input.
            KeyboardInterrupt: Ctrl-C; a LineDiscarded if something was typed.
        """
        self.prepare()
        return self._edited.read(default) if self._edited else _read_plain(default)


def _can_edit() -> bool:
    both = sys.stdin.isatty() and sys.stderr.isatty()
    return both and os.environ.get("TERM", "").casefold() not in _DUMB_TERMINALS


def _read_plain(default: str) -> str:
    """A message in plain lines. The default is shown, and an empty line takes it."""
    if default:
        sys.stderr.write(f"{visible(default)}\n(an empty line sends this)\n")
    text = _plain_line(PROMPT)
    if text is None:
        raise EOFError
    while opens_block(text) and block_is_open(text):
        more = _plain_line(CONTINUATION)
        if more is None:
            return text
        text += "\n" + more
    if opens_block(text):
        return block_message(text)
    while ends_in_backslash(text):
        text = without_backslash(text) + "\n" + (_plain_line(CONTINUATION) or "")
    return text or default


def _plain_line(prompt: str) -> str | None:
    """The next line of standard input without its end; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.buffer.readline()
    if not line:
        return None
    return line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
