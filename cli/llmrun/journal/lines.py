"""Append-only files of JSON lines that survive crashes, full disks and several writers.

A record is one line, written by one `write` to a file opened for appending, which POSIX makes atomic with
respect to other appends on a local file system. A writer that dies in the middle leaves a torn line; the
next one starts a line of its own, and readers skip and count what they cannot read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import UsageError, WriteFailure

Record = Mapping[str, object]

# O_BINARY exists on Windows only, where text mode would change line ends
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Journal:
    """What a file held: its records in order, and how many lines were damaged."""

    records: tuple[Record, ...]
    damaged: int


def append(path: Path, record: Record, *, sync: bool = False) -> None:
    """Add one record, which names its version in `schema`; the file is private to the user.

    With `sync` it is on the disk on return. Raises WriteFailure if it could not be written, and ValueError
    for a record that JSON cannot hold or that lacks its schema.
    """
    if not isinstance(record.get("schema"), str):
        raise ValueError("a journal record names its schema")
    line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, _APPEND, 0o600)
        try:
            _write_line(descriptor, line)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WriteFailure(f"cannot write {path}: {error.strerror}", _next_step(error)) from error


def _write_line(descriptor: int, line: bytes) -> None:
    if _ends_torn(descriptor):
        line = b"\n" + line
    if os.write(descriptor, line) < len(line):
        # a file takes less than all only for want of space; the rest cannot follow, as others append too
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _ends_torn(descriptor: int) -> bool:
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_size == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"


def _next_step(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some disk space, or move the folder with LLMRUN_DATA_DIR"
    return "check the permissions of file and folder, or move the folder with LLMRUN_DATA_DIR"


def read(path: Path) -> Journal:
    """All records of the file; one that does not exist is empty. Raises UsageError if it cannot be opened."""
    records: list[Record] = []
    damaged = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                record = _parse(line)
                if record is None:
                    damaged += 1
                else:
                    records.append(record)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
    return Journal(tuple(records), damaged)


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("schema"), str) else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
