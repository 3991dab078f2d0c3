"""The line a user types in a chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

PROMPT = ">>> "


class LineEditor:
    """Reads one message at a time; drawn on stderr, so that stdout stays the model's."""

    def __init__(self) -> None:
        self._session: PromptSession[str] | None = None

    def read(self) -> str:
        """The next line.

        Raises:
            EOFError: the user left with Ctrl-D.
            KeyboardInterrupt: the user pressed Ctrl-C.
        """
        if self._session is None:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.output import create_output

            self._session = PromptSession(output=create_output(stdout=sys.stderr))
        return self._session.prompt(PROMPT)
