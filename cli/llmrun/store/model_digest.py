"""SHA-256 of a model's files, remembered so that it is computed once a file and not once a run.

A file that has not changed has the same device, inode, size, and times of change; what those were is
remembered beside the digest, in a file of its own for each. A file that was copied or touched is hashed
again. The change time (`st_ctime`) is in it because programs can set the modification time back.

Hashing takes a moment, so it waits until a model has been used for long enough to be worth it; how long that
was is remembered in the same place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = "digests"


def remembered_digest(paths: Sequence[Path], folder: Path) -> str | None:
    """The digest of a model's files in order, if each was hashed in its present state; else None."""
    digests = [_read(folder / FOLDER / _state_name(path)) for path in paths]
    known = [digest for digest in digests if digest is not None]
    return _of_all(known) if len(known) == len(paths) else None


def unknown_bytes(paths: Sequence[Path], folder: Path) -> int:
    """Bytes that would have to be hashed."""
    return sum(path.stat().st_size for path in paths if _read(folder / FOLDER / _state_name(path)) is None)


def compute_digest(paths: Sequence[Path], folder: Path) -> str:
    """The digest of a model's files in order; what was not remembered is hashed, and remembered now.

    Raises OSError.
    """
    return _of_all([_digest_of(path, folder / FOLDER) for path in paths])


def time_used(paths: Sequence[Path], folder: Path, more_s: float) -> float:
    """Seconds that requests of a model without digest took so far, with `more_s` added and remembered."""
    file = folder / FOLDER / f"{_state_name(paths[0])}.used"
    try:
        before_s = max(0.0, float(file.read_text(encoding="ascii")))
    except (OSError, ValueError):
        before_s = 0.0
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(f"{before_s + more_s:.3f}", encoding="ascii")
    return before_s + more_s


def _digest_of(path: Path, folder: Path) -> str:
    name = _state_name(path)
    known = _read(folder / name)
    if known is not None:
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if name == _state_name(path):  # else it was written to meanwhile
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = folder / f".{name}.{os.getpid()}"
        try:
            temporary.write_text(digest, encoding="ascii")
            temporary.replace(folder / name)
        finally:
            with suppress(OSError):
                temporary.unlink()
    return digest


def _state_name(path: Path) -> str:
    """A name for the present state of a file; also for one that is not there."""
    try:
        stat = path.stat()
    except OSError:
        return "missing"
    state = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return hashlib.sha256(repr(state).encode()).hexdigest()[:32]


def _read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) == 64 and not text.strip("0123456789abcdef") else None


def _of_all(digests: Sequence[str]) -> str:
    """One digest for a model: that of its file, or of the list of its parts' digests."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
