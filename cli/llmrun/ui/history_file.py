"""What was typed in earlier chats, in a private file: one JSON object a line, oldest first.

JSON in ASCII keeps line ends and control characters of an entry harmless to whoever looks at the file. An
entry is one `write` to a file opened for appending; a torn line costs itself only. The file is rewritten
beside itself and renamed when it has grown too large, under a lock, so that several chats can share it.
Nothing here stops a chat: what goes wrong becomes a note.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SCHEMA = "llmrun.input/1"
MAX_FILE_BYTES = 1 << 20
"""Above this the older half goes."""
MAX_ENTRY_BYTES = 1 << 16
"""An entry that is longer on disk is remembered until the program ends only."""

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a pipe in the file's place must not stop the program
_READ = os.O_RDONLY | _NONBLOCK
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NONBLOCK
_OTHERS = 0o077


class HistoryFile:
    """Reads the file once and adds to it; `notes` collects what went wrong."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.realpath(path))  # a link stays a link when the file is rewritten
        self._writable = True
        self._damaged = False
        self.notes: list[str] = []

    def load(self) -> list[str]:
        """Entries, oldest first; at most the newest `MAX_FILE_BYTES`. A missing file has none."""
        try:
            lines = self._read()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._writable = False
            self.notes.append(f"input history {self._path} cannot be read: {error.strerror}")
            return []
        found = [_entry(line) for line in lines if line.strip()]
        entries = [text for text in found if text is not None]
        if damaged := len(found) - len(entries):
            self._damaged = True  # the next entry cleans the file
            self.notes.append(f"input history {self._path}: damaged lines ignored: {damaged}")
        return entries

    def append(self, text: str) -> None:
        """Add an entry; the first failure becomes a note and ends the writing."""
        line = json.dumps({"schema": SCHEMA, "text": text}, separators=(",", ":")).encode() + b"\n"
        if not self._writable or len(line) > MAX_ENTRY_BYTES:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as descriptor:
                if _ends_torn(descriptor):
                    line = b"\n" + line
                os.write(descriptor, line)
                if os.fstat(descriptor).st_size > MAX_FILE_BYTES:
                    self._rewrite(descriptor, MAX_FILE_BYTES // 2)
                elif self._damaged:
                    self._rewrite(descriptor, MAX_FILE_BYTES)
                self._damaged = False
        except OSError as error:
            self._writable = False
            self.notes.append(f"input history {self._path} cannot be written: {error.strerror}")

    def _read(self) -> list[bytes]:
        descriptor = os.open(self._path, _READ)
        try:
            _check_regular(descriptor)
            return _last_lines(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file open for appending, private and locked, and still the one at the path."""
        while True:
            descriptor = os.open(self._path, _APPEND, 0o600)
            try:
                _check_regular(descriptor)
                _lock(descriptor)
                if not self._is_current(descriptor):
                    continue
                if os.fstat(descriptor).st_mode & _OTHERS:
                    os.fchmod(descriptor, 0o600)
                yield descriptor
                return
            finally:
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """False where another chat has put a shorter file in its place."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _rewrite(self, descriptor: int, most_bytes: int) -> None:
        """Keep the readable entries among the last `most_bytes`."""
        kept = b"".join(line for line in _last_lines(descriptor, most_bytes) if _entry(line) is not None)
        handle, beside = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        try:
            with open(handle, "wb") as file:
                file.write(kept)
            os.replace(beside, self._path)
        except BaseException:
            os.unlink(beside)
            raise


def _check_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(0, "not a regular file")


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        return
    with suppress(OSError):  # a file system without locks: two chats may then lose an entry, no more
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _last_lines(descriptor: int, most_bytes: int = MAX_FILE_BYTES) -> list[bytes]:
    """Whole lines within the last `most_bytes` of the file, line ends kept."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - most_bytes)
    os.lseek(descriptor, max(0, start - 1), os.SEEK_SET)
    data = b""
    while len(data) < most_bytes + 1 and (piece := os.read(descriptor, most_bytes + 1 - len(data))):
        data += piece
    if start:
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    return data.splitlines(keepends=True)


def _ends_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    if size == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"


def _entry(line: bytes) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return None
    text = record.get("text")
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) and text else None
