"""Chat sessions that survive: where they are kept, and how they are found, opened and copied.

A session is an append-only file, `sessions/NAME.jsonl` in the data folder; docs/reference/sessions.md is its
format. Every record is flushed to the disk as it ends, so that a killed program loses at most the turn in
flight, and an open session is locked, so that two chats never write to one file.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.lines import Record, read
from llmrun.journal.new_file import create_new, try_lock, write_failure
from llmrun.journal.session import Session, SessionFile
from llmrun.journal.session_names import checked_name, copy_names, generated_names, name_key, quoted
from llmrun.journal.session_records import History, Transcript, Turn, header_record, replay, turn_record

ENDING = ".jsonl"
FIRST_WORDS_LENGTH = 60

_WRITE_HINT = "check the permissions of file and folder, or move the folder with LLMRUN_DATA_DIR"
# clocks of file systems are as coarse as 2 s (FAT)
_CLOCK_STEP = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One line of a list. `problem` says why a file cannot be opened; what it would tell is then missing."""

    name: str
    changed: datetime
    model: str = ""
    created: datetime | None = None
    turns: int = 0
    first_words: str = ""
    problem: str = ""


class SessionStore:
    """The sessions in `data_dir`, which is made when the first one is; `now` gives times with a zone."""

    def __init__(self, data_dir: Path, now: Callable[[], datetime]) -> None:
        self._folder = data_dir / "sessions"
        self._now = now

    def create(self, name: str | None, *, model: str, system: str) -> Session:
        """Begin a session, under a name made of the time where `name` is None.

        Raises UsageError for a name that is unsafe, WriteFailure if it is taken or cannot be written.
        """
        if name is None:
            return self._begin(generated_names(self._now()), model, system, ())
        return self._begin(self._free(name), model, system, ())

    def unsaved(self, *, model: str, system: str, turns: tuple[Turn, ...] = ()) -> Session:
        """A session in memory alone, with no name: nothing of it is written unless it is saved as another."""
        header = header_record(self._now(), name="", model=model, system=system)
        records = [header, *(turn_record(at, turn, None) for at, turn in enumerate(turns, 1))]
        return Session("", replay("", records)[0], self._now, None)

    def open(self, name: str) -> Session:
        """Go on with a session, or with a copy under a new name where another chat has it open.

        Raises UsageError if there is none, or if it is no session or one of a newer llmrun; WriteFailure if
        a copy cannot be written. A session that can only be read opens; its first change will fail.
        """
        path = self._existing(name)
        name = _name_of(path)
        descriptor = _open(path)
        try:
            locked = try_lock(descriptor)
            history, damaged = _load(path)
        except BaseException:
            os.close(descriptor)
            raise
        if locked:
            file = SessionFile(path, descriptor, made=False)
            return Session(name, history, self._now, file, damaged_lines=damaged)
        os.close(descriptor)
        copy = self._begin(copy_names(name), history.model, history.system, history.turns)
        copy.damaged_lines, copy.copied_from = damaged, name
        return copy

    def read(self, name: str) -> Transcript:
        """The conversation as it stands on the disk, whoever has it open. Raises UsageError like `open`."""
        path = self._existing(name)
        history, damaged = _load(path)
        return Transcript(
            _name_of(path), history.created, history.model, history.system, history.turns, damaged
        )

    def exists(self, name: str) -> bool:
        """Whether there is one of this name, in any letter case. Raises UsageError for an unsafe name."""
        return self._find(checked_name(name)) is not None

    def is_open_in(self, session: Session, name: str) -> bool:
        """Whether `name`, in any letter case, is this very session. Raises UsageError for an unsafe name."""
        return session.path is not None and self._find(checked_name(name)) == session.path

    def save_as(self, session: Session, new_name: str) -> Path:
        """Write the conversation as it is now to a session of its own; the file it made.

        Raises UsageError for a name that is unsafe, WriteFailure if it is taken or cannot be written.
        """
        names = self._free(new_name)
        _, file = self._write(names, session.model, session.system, session.turns, made=False)
        file.close()
        return file.path

    def last(self) -> str | None:
        """The session with the latest record, None if there is none; those never used do not count."""
        files = sorted(((_modified(path), path) for path in self._files().values()), reverse=True)
        best: tuple[datetime, str] | None = None
        for modified, path in files:
            # no record is later than its file, so the rest need not be read
            if best is not None and best[0] > modified + _CLOCK_STEP:
                break
            try:
                history, _ = _load(path)
            except UsageError:
                continue
            if history.last_number > 0 and (best is None or history.changed > best[0]):
                best = history.changed, _name_of(path)
        return best[1] if best else None

    def list(self) -> tuple[SessionSummary, ...]:
        """All sessions, the latest first; those that cannot be opened say why."""
        summaries = map(_summary, self._files().values())
        return tuple(sorted(summaries, key=lambda one: (one.changed, one.name), reverse=True))

    # ---- files --------------------------------------------------------------------------------------------

    def _files(self) -> dict[str, Path]:
        """Files that may be sessions, by name."""
        try:
            with os.scandir(self._folder) as entries:
                paths = [Path(entry.path) for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable(self._folder, error) from error
        return {_name_of(path): path for path in sorted(paths) if _can_be_session(path)}

    def _find(self, name: str) -> Path | None:
        files = self._files()
        if name in files:
            return files[name]
        key = name_key(name)
        return next((path for other, path in files.items() if name_key(other) == key), None)

    def _existing(self, name: str) -> Path:
        path = self._find(checked_name(name))
        if path is None:
            raise UsageError(
                f"there is no session {quoted(name)}", "`llmrun chat --list-sessions` lists those there are"
            )
        return path

    def _free(self, name: str) -> tuple[str]:
        name = checked_name(name)
        if self._find(name) is not None:
            raise _taken(name)
        return (name,)

    def _begin(self, names: Iterable[str], model: str, system: str, turns: tuple[Turn, ...]) -> Session:
        history, file = self._write(names, model, system, turns, made=True)
        return Session(history.name, history, self._now, file)

    def _write(
        self, names: Iterable[str], model: str, system: str, turns: tuple[Turn, ...], *, made: bool
    ) -> tuple[History, SessionFile]:
        """A new file under the first of `names` that is free."""
        path = self._folder
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            for name in names:
                path = self._folder / (name + ENDING)
                header = header_record(self._now(), name=name, model=model, system=system)
                records = [header, *(turn_record(at, turn, None) for at, turn in enumerate(turns, 1))]
                if self._find(name) is None and (descriptor := _create(path, records)) is not None:
                    return replay(name, records)[0], SessionFile(path, descriptor, made=made)
        except OSError as error:
            raise write_failure(path, error, _WRITE_HINT) from error
        raise _taken(path.name.removesuffix(ENDING))


def _create(path: Path, records: Iterable[Record]) -> int | None:
    lines = "".join(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n" for record in records)
    try:
        return create_new(path, lines.encode(), mode=0o600)
    except FileExistsError:
        return None


def _taken(name: str) -> WriteFailure:
    return WriteFailure(f"there is a session {quoted(name)} already", "choose another name")


def _open(path: Path) -> int:
    """For reading, and for writing where that is allowed, which locks on some network shares need."""
    try:
        try:
            return os.open(path, os.O_RDWR)
        except OSError:
            return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}", "check its permissions")


def _load(path: Path) -> tuple[History, int]:
    journal = read(path)
    history, damaged = replay(_name_of(path), journal.records)
    return history, journal.damaged + damaged


def _summary(path: Path) -> SessionSummary:
    name = _name_of(path)
    try:
        history, _ = _load(path)
    except UsageError as error:
        return SessionSummary(name, _modified(path), problem=error.message)
    turns = history.turns
    words = " ".join(turns[0].user.split()) if turns else ""
    if len(words) > FIRST_WORDS_LENGTH:
        words = words[: FIRST_WORDS_LENGTH - 1].rstrip() + "…"
    return SessionSummary(name, history.changed, history.model, history.created, len(turns), words)


def _modified(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(0, UTC)


def _name_of(path: Path) -> str:
    return unicodedata.normalize("NFC", path.name.removesuffix(ENDING))


def _can_be_session(path: Path) -> bool:
    if not path.name.endswith(ENDING):
        return False
    try:
        checked_name(_name_of(path))
    except UsageError:
        return False
    return True
