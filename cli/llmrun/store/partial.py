"""A file on its way into the cache: the kept prefix, the digest, and the step that makes it a model.

Bytes go to `blobs/DIGEST.incomplete`, in order and without gaps, so that a killed download can go on where it
was. The digest is computed while they come. Only when it agrees are they flushed to the disk and renamed, in
this order, after which the file is complete for every other program (rename is atomic: POSIX.1-2017).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmrun.errors import WriteFailure
from llmrun.reports.download import Verified
from llmrun.store.hf_cache import NOTE, PARTIAL, read_note
from llmrun.store.repo_files import RepoFile
from llmrun.units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_BYTES = 4 << 20


Stamp = tuple[int, int]
"""Which writing of a file it is: one that was put in its place since has another (`stamp_of`)."""


class DiskFull(WriteFailure):
    """No room is left where the cache lies."""


class Partial:
    """The partial file of `blob`. `done_bytes` are on disk; they are hashed by `resume` and `write`."""

    def __init__(self, blob: Path, file: RepoFile) -> None:
        self.blob, self._file = blob, file
        self.path = blob.with_name(blob.name + PARTIAL)
        self._note = note_of(self.path)
        self._fd = -1
        self.done_bytes = 0
        self._hash = fresh_hash(self._file)

    @property
    def verified(self) -> Verified:
        """What `matches` compares."""
        return "sha256" if self._file.sha256 else "git"

    def kept_bytes(self) -> int:
        """Bytes that an earlier run left and that can be continued."""
        try:
            size = self.path.lstat().st_size
        except OSError:
            return 0
        return size if size <= self._file.size_bytes and not self.path.is_symlink() else 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Holds the file open; raises `WriteFailure` where it cannot be written."""
        with writing(self.blob.parent):
            self.blob.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_symlink():
                self.path.unlink()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            entry = {"path": self._file.path, "size_bytes": self._file.size_bytes}
            with writing(self.blob.parent):
                self._note.write_text(json.dumps(entry), encoding="utf-8")
            yield
        except DiskFull:
            self.discard()
            raise
        finally:
            if os.fstat(self._fd).st_size == 0:  # refused before the first byte: nothing was begun
                self.discard()
            os.close(self._fd)
            self._fd = -1

    def resume(self) -> Iterator[int]:
        """Hash what an earlier run left; yields how much of it is done."""
        kept = self.kept_bytes()
        if not kept:
            self.restart()
        while self.done_bytes < kept:
            with writing(self.blob.parent):
                block = os.pread(self._fd, _READ_BYTES, self.done_bytes)
            if not block:
                break
            self._hash.update(block)
            self.done_bytes += len(block)
            yield self.done_bytes
        with writing(self.blob.parent):
            os.ftruncate(self._fd, self.done_bytes)

    def restart(self) -> None:
        """Throw away what is there."""
        with writing(self.blob.parent):
            os.ftruncate(self._fd, 0)
        self.done_bytes = 0
        self._hash = fresh_hash(self._file)

    def write(self, block: bytes) -> None:
        """Append; never beyond the announced size. Raises `DiskFull` and `WriteFailure`."""
        view = memoryview(block)[: self._file.size_bytes - self.done_bytes]
        self._hash.update(view)
        with writing(self.blob.parent):
            while view:
                count = os.pwrite(self._fd, view, self.done_bytes)
                self.done_bytes += count
                view = view[count:]

    def digest(self) -> str:
        """Digest of what is there, of the kind the Hub advertises for this file."""
        return self._hash.hexdigest()

    def matches(self) -> bool:
        """Whether all bytes are there and their digest is the advertised one."""
        return self.done_bytes == self._file.size_bytes and self.digest() == self._file.blob_name

    def finish(self) -> None:
        """Make the bytes the blob: on the disk first, then under its name."""
        with writing(self.blob.parent):
            os.fsync(self._fd)
            os.replace(self.path, self.blob)
            self._note.unlink(missing_ok=True)
            sync_folder(self.blob.parent)

    def discard(self) -> None:
        """Remove the partial file and its note."""
        with suppress(OSError):
            self.path.unlink()
        with suppress(OSError):
            self._note.unlink()


def fresh_hash(file: RepoFile) -> hashlib._Hash:
    """What hashes the content of `file` to the digest that the Hub advertises for it."""
    if file.sha256:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)


def stamp_of(found: os.stat_result) -> Stamp:
    """Inode and time of change, in ns."""
    return found.st_ino, found.st_mtime_ns


def note_of(partial: Path) -> Path:
    """The note beside a partial file: whose it is, and how long it will be."""
    return partial.with_name(partial.name.removesuffix(PARTIAL) + NOTE)


def outdated(blob: Path, file: RepoFile) -> Iterator[Path]:
    """Blobs whose partial files are older contents of the same path, which nobody will continue."""
    for note in sorted(blob.parent.glob(f"*{NOTE}")):
        if read_note(note)[0] == file.path and note.name != blob.name + NOTE:
            yield note.with_name(note.name.removesuffix(NOTE))


def link(blob: Path, place: Path) -> None:
    """Let the snapshot's entry lead to the blob: a relative link, a move where links are not possible."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{os.getpid()}.link")
    beside.unlink(missing_ok=True)
    try:
        beside.symlink_to(os.path.relpath(blob, place.parent))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        os.replace(blob, place)
    else:
        os.replace(beside, place)
    sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Make a renamed entry survive a power cut; where a file system cannot, nothing is lost but that."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def check_space(folder: Path, needed_bytes: int, reserve_bytes: int) -> None:
    """Raises `DiskFull` with both numbers unless `needed_bytes` fit beside the reserve that stays free."""
    import shutil

    there = folder
    while not os.path.exists(there) and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return
    if needed_bytes > max(0, free - reserve_bytes):
        raise DiskFull(
            f"the download needs {format_bytes(needed_bytes)}, but {there} has {format_bytes(free)} free"
            f" ({format_bytes(reserve_bytes)} of that are left alone)",
            "free some space, choose a smaller quantization, or set HF_HUB_CACHE to another disk",
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an `OSError` into a `WriteFailure` that names the folder; `DiskFull` where it has no room."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DiskFull(
                f"{folder} is full ({reason}); the partial file was removed",
                "free some space, or set HF_HUB_CACHE to another disk",
            ) from error
        raise WriteFailure(
            f"cannot write in {folder}: {reason}",
            "check its permissions, or set HF_HUB_CACHE to another folder",
        ) from error
