"""A conversation as values: who said what, and which part of an answer was reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `reasoning` is the thinking before `content`; `interrupted`: the answer was cut short."""

    role: Role
    content: str
    reasoning: str = ""
    interrupted: bool = False


class Conversation:
    """Turns in order, behind an optional system text."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """The system text, when there is one, and all turns."""
        head = (Message("system", self.system),) if self.system else ()
        return (*head, *self._turns)

    def add_user(self, content: str) -> None:
        """Append what the user said."""
        self._turns.append(Message("user", content))

    def add_assistant(self, content: str, reasoning: str = "", *, interrupted: bool = False) -> None:
        """Append an answer."""
        self._turns.append(Message("assistant", content, reasoning, interrupted))

    def undo(self) -> str | None:
        """Take back the last user turn and everything after it; its text, or None if there was none."""
        for index in range(len(self._turns) - 1, -1, -1):
            if self._turns[index].role == "user":
                content = self._turns[index].content
                del self._turns[index:]
                return content
        return None

    def clear(self) -> None:
        """Forget all turns; the system text stays."""
        self._turns.clear()
