"""New files that appear whole or not at all, and locks that end with the process that holds them.

A file is written under a temporary name, flushed, and then given its name by `link`, which POSIX makes fail
if the name is taken: of several writers exactly one wins, and nobody ever sees a file in the making.
`flock` belongs to the open file, so that the system lets go of it however a process ends.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from llmrun.errors import WriteFailure

# O_BINARY exists on Windows only, where text mode would change line ends
_BINARY = getattr(os, "O_BINARY", 0)
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def create_new(path: Path, data: bytes, *, mode: int) -> int:
    """Make the file `path` of `data` and flush it to the disk; the descriptor, locked by this process.

    `mode` is subject to the umask. Raises FileExistsError if the name is taken, and OSError.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.new")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            try_lock(descriptor)
            _take_name(temporary, path)
        finally:
            # gone already where it was renamed
            with suppress(OSError):
                temporary.unlink()
        _sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _take_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # without hard links (FAT, some network shares) an empty file holds the name for the rename
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where folders can be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock the open file against other processes and other openings; False if it is locked already.

    True also where there are no locks: on Windows, and on file systems that offer none.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def write_failure(path: Path, error: OSError, hint: str) -> WriteFailure:
    """`error` as the program says it; `hint` is what to do about any reason but a full disk."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return WriteFailure(f"cannot write {path}: {error.strerror}", "free some disk space" if full else hint)
