"""One chat's session while it is open: every change is on the disk when the method that made it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from llmrun.documents.requests import completion_document
from llmrun.errors import WriteFailure
from llmrun.events import Completion, FinishReason
from llmrun.journal.lines import Record, append
from llmrun.journal.session_records import (
    History,
    Turn,
    clear_record,
    model_record,
    system_record,
    turn_record,
    undo_record,
)


class SessionFile:
    """An open, locked file that records are added to; what could not be written stays due.

    A file that was `made` for this chat is removed on closing if nothing was ever added.
    """

    def __init__(self, path: Path, descriptor: int, *, made: bool) -> None:
        self.path = path
        self._descriptor = descriptor
        self._unused = made
        self._due: list[Record] = []

    def add(self, record: Record) -> None:
        """Write what is due, then `record`. Raises WriteFailure, after which all that is left stays due."""
        self._unused = False
        self._due.append(record)
        self._write_due()

    def _write_due(self) -> None:
        while self._due:
            if not self._in_place():
                raise WriteFailure(
                    f"cannot write {self.path}: it was moved or removed while the chat was open",
                    "keep the chat under another name with /save NAME",
                )
            append(self.path, self._due[0], sync=True)
            del self._due[0]

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def close(self) -> None:
        """Try once more to write what is due, and unlock. Raises WriteFailure."""
        try:
            if not self._unused:
                self._write_due()
            elif self._in_place():
                with suppress(OSError):
                    self.path.unlink()
        finally:
            os.close(self._descriptor)


class Session:
    """A conversation that is kept; without a file it is kept in memory alone.

    Every change takes effect at once. Where it cannot be written it raises WriteFailure, has taken effect
    all the same, and is written ahead of the next change: the caller may warn and go on. Text is kept as it
    is, save that lone surrogates, which no encoding can hold, become U+FFFD.

    `damaged_lines` of the file could not be read. `copied_from` is set where another chat had that session
    open, so that this is a copy of it under a name of its own.
    """

    def __init__(
        self,
        name: str,
        history: History,
        now: Callable[[], datetime],
        file: SessionFile | None,
        *,
        damaged_lines: int = 0,
        copied_from: str | None = None,
    ) -> None:
        self.name = name
        self.damaged_lines = damaged_lines
        self.copied_from = copied_from
        self._history = history
        self._now = now
        self._file = file
        self._closed = False

    @property
    def path(self) -> Path | None:
        """The file, None for a session in memory."""
        return self._file.path if self._file else None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The conversation: turns that were neither undone nor replaced."""
        return self._history.turns

    @property
    def system(self) -> str:
        """The system text, empty for none."""
        return self._history.system

    @property
    def model(self) -> str:
        """The model as the user named it."""
        return self._history.model

    def add_turn(
        self,
        user: str,
        answer: str,
        *,
        reasoning: str = "",
        finish_reason: FinishReason = "stop",
        usage: Mapping[str, object] | None = None,
        regen: bool = False,
        left_out: int = 0,
        summary: str = "",
    ) -> None:
        """Keep a turn that ended now; with `regen` in place of the last one. Raises WriteFailure."""
        numbers = self._history.turn_numbers
        turn = Turn(user, answer, reasoning, finish_reason, self.model, self._now(), usage, left_out, summary)
        self._keep(turn_record(self._next, turn, numbers[-1] if regen and numbers else None))

    def add_completion(
        self, user: str, completion: Completion, *, regen: bool = False, left_out: int = 0, summary: str = ""
    ) -> None:
        """Keep `completion` as the answer to `user`, like `add_turn`."""
        usage = completion_document(completion)["usage"]
        self.add_turn(
            user,
            completion.text,
            reasoning=completion.reasoning,
            finish_reason=completion.finish_reason,
            usage=usage if isinstance(usage, Mapping) else None,
            regen=regen,
            left_out=left_out,
            summary=summary,
        )

    def undo(self, turns: int = 1) -> tuple[Turn, ...]:
        """Take back the last turns, as many as there are; those taken, in order. Raises WriteFailure."""
        if turns < 1:
            raise ValueError("at least one turn is undone")
        numbers, taken = self._history.turn_numbers[-turns:], self.turns[-turns:]
        if numbers:
            self._keep(undo_record(self._next, self._now(), len(numbers), numbers[0]))
        return taken

    def clear(self) -> None:
        """Take back all turns; the system text stays. Raises WriteFailure."""
        if self.turns:
            self._keep(clear_record(self._next, self._now()))

    def set_system(self, text: str) -> None:
        """Change the system text. Raises WriteFailure."""
        if text != self.system:
            self._keep(system_record(self._next, self._now(), text))

    def set_model(self, ref: str) -> None:
        """Change the model that answers from here on. Raises WriteFailure."""
        if ref != self.model:
            self._keep(model_record(self._next, self._now(), ref))

    def close(self) -> None:
        """Let others open the session; closing twice does nothing.

        Changes that could not be written are tried again; raises WriteFailure if they still cannot. A
        session that was made for this chat, and to which nothing was added, leaves no file.
        """
        if not self._closed:
            self._closed = True
            if self._file is not None:
                self._file.close()

    @property
    def _next(self) -> int:
        return self._history.last_number + 1

    def _keep(self, record: Record) -> None:
        if self._closed:
            raise ValueError("the session is closed")
        self._history.apply(record)
        if self._file is not None:
            self._file.add(record)
