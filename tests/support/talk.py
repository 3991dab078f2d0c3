"""A chat on a pseudo-terminal, one line after another."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from llmrun.journal.session_records import Transcript
from llmrun.journal.sessions import SessionStore

from tests.support.cli import Cli, Terminal

PROMPT_ENDED = b"\x1b[?2004l"
"""What the editor sends when a line was entered."""


class Talk:
    """Waits for the first prompt; then `says` sends a line and waits for the next one."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        terminal.wait_for_prompt()

    def says(self, line: str) -> str:
        """Enter a line; what is shown from there to the next prompt."""
        place = self.enters(line)
        self.terminal.wait_until(self._at_prompt, "prompt")
        return self.terminal.text[place:]

    def enters(self, line: str) -> int:
        """Enter a line; the length of the text shown before."""
        text, raw = len(self.terminal.text), len(self.terminal.raw)
        self.terminal.send(line + "\r")
        self.terminal.wait_until(lambda: PROMPT_ENDED in self.terminal.raw[raw:], "end of the prompt")
        return text

    def leaves(self) -> None:
        """Ctrl-D; the end must be clean."""
        self.terminal.send("\x04")
        assert self.terminal.ended() == 0
        assert self.terminal.modes == self.terminal.modes_before

    def _at_prompt(self) -> bool:
        return self.terminal.line_at_cursor.startswith(">>>")


def store_of(cli: Cli) -> SessionStore:
    """The sessions that the program keeps."""
    return SessionStore(cli.data_dir, lambda: datetime.now().astimezone())


def last_session(cli: Cli) -> Transcript:
    """The session that was changed last."""
    store = store_of(cli)
    name = store.last()
    assert name is not None
    return store.read(name)


def said(cli: Cli) -> list[tuple[str, str]]:
    """Messages and answers of that session."""
    return [(turn.user, turn.answer) for turn in last_session(cli).turns]


def session_files(cli: Cli) -> list[Path]:
    """All session files."""
    return sorted((cli.data_dir / "sessions").glob("*"))
