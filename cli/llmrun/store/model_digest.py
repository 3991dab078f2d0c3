"""SHA-256 of a model's files, remembered so that it is computed once a file and not once a run.

A file that has not changed has the same device, inode, size, and times of change; what those were is
remembered beside the digest, in a file of its own for each. A file that was copied or touched is hashed
again. The change time (`st_ctime`) is in it because programs can set the modification time back.

What counts is the file that the engine has read. Its state is taken before that, and once another file lies
in its place it is unknown: the digest of the new one would say nothing about what was computed with the old.

Hashing takes a moment, so it waits until a model has been used for long enough to be worth it; how long that
was is remembered in the same place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmrun.store.patience import ENDLESS, PIECE_BYTES, Patience

FOLDER = "digests"


class Replaced(Exception):
    """A file is no longer the one that was opened."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files in order, in the state that they had when this was made."""

    paths: tuple[Path, ...]
    states: tuple[str, ...]

    @classmethod
    def now(cls, paths: Sequence[Path]) -> ModelFiles:
        """The files as they are."""
        return cls(tuple(paths), tuple(map(_state_name, paths)))

    @property
    def unchanged(self) -> bool:
        """Whether they still are what they were."""
        return self == ModelFiles.now(self.paths)


def remembered_digest(files: ModelFiles, folder: Path) -> str | None:
    """The digest of a model's files in order, if each was hashed in its present state; else None."""
    if not files.unchanged:
        return None
    digests = [_read(folder / FOLDER / state) for state in files.states]
    known = [digest for digest in digests if digest is not None]
    return _of_all(known) if len(known) == len(files.paths) else None


def unknown_bytes(files: ModelFiles, folder: Path) -> int:
    """Bytes that would have to be hashed. Raises OSError."""
    return sum(
        path.stat().st_size
        for path, state in zip(files.paths, files.states, strict=True)
        if _read(folder / FOLDER / state) is None
    )


def compute_digest(files: ModelFiles, folder: Path, patience: Patience = ENDLESS) -> str:
    """The digest of a model's files in order; what was not remembered is hashed, and remembered now.

    Raises:
        OSError: a file cannot be read.
        Replaced: the files are not what they were.
        GaveUp: hashing was to end before its end.
    """
    digests = [
        _digest_of(path, state, folder / FOLDER, patience)
        for path, state in zip(files.paths, files.states, strict=True)
    ]
    if not files.unchanged:
        raise Replaced
    return _of_all(digests)


def time_used(files: ModelFiles, folder: Path, more_s: float) -> float:
    """Seconds that requests of a model without digest took so far, with `more_s` added and remembered."""
    file = folder / FOLDER / f"{files.states[0]}.used"
    try:
        before_s = max(0.0, float(file.read_text(encoding="ascii")))
    except (OSError, ValueError):
        before_s = 0.0
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(f"{before_s + more_s:.3f}", encoding="ascii")
    return before_s + more_s


def _digest_of(path: Path, state: str, folder: Path, patience: Patience) -> str:
    known = _read(folder / state)
    if known is not None:
        return known
    digest = _hashed(path, patience)
    if state != _state_name(path):
        raise Replaced
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = folder / f".{state}.{os.getpid()}"
    try:
        temporary.write_text(digest, encoding="ascii")
        temporary.replace(folder / state)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return digest


def _hashed(path: Path, patience: Patience) -> str:
    digest, piece, done_bytes = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            done_bytes += count
            patience.check(done_bytes)
    return digest.hexdigest()


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
