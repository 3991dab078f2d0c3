"""Remove files from the Hugging Face cache without taking anything that another entry needs.

A content is shared by every snapshot entry that links to its blob, and a blob may itself be a link into the
store that the Hub's client shares between repositories (`blobs/` at the cache's root). Each goes with the
last link to it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK

from llmrun.errors import WriteFailure
from llmrun.store.hf_cache import (
    PARTIAL,
    PartialFile,
    blob_of,
    cached_files,
    hub_cache_dir,
    partial_files,
    repo_folder,
)
from llmrun.store.partial import note_of, writing


@dataclass(frozen=True, slots=True)
class Removed:
    """What went: names in the repository, bytes that are free now, and bytes another entry still needs."""

    paths: tuple[str, ...]
    freed_bytes: int
    shared_bytes: int


def remove(repo: str, paths: Collection[str], root: Path | None = None) -> Removed:
    """Remove `paths` of a repository in every revision, broken-off downloads of them included.

    A repository of which no file is left goes as a whole. Raises `WriteFailure` where another program is
    fetching one of them, or the folder cannot be written; nothing is removed in the first case.
    """
    root = root or hub_cache_dir()
    folder = repo_folder(repo, root)
    entries = cached_files(repo, root)
    going = [entry for entry in entries if entry.path in paths]
    needed = {entry.blob for entry in entries if entry.path not in paths}
    partials = partial_files(repo, root)
    stopped = [partial for partial in partials if partial.path in paths]
    empty = len(going) == len(entries) and all(p in stopped or not p.path for p in partials)
    with _unlocked(root / ".locks" / folder.name, partials if empty else stopped, repo), writing(folder):
        freed = sum(_unlink(partial.file) for partial in stopped)
        for partial in stopped:
            note_of(partial.file).unlink(missing_ok=True)
        for entry in going:
            freed += _unlink(entry.file)
            _remove_empty(entry.file.parent, folder)
        mine = os.path.realpath(folder / "blobs")
        for blob in {entry.blob for entry in going} - needed:
            if os.path.realpath(blob.parent) == mine:  # a link may lead anywhere
                freed += _drop_blob(blob, root)
        if empty:
            freed += _remove_tree(folder, root)
    kept = {entry.blob: entry.size_bytes for entry in going if entry.blob in needed}
    names = sorted({entry.path for entry in going} | {partial.path for partial in stopped})
    return Removed(tuple(names), freed, sum(kept.values()))


def _drop_blob(blob: Path, root: Path) -> int:
    """Remove a blob nobody links to, and the shared content behind it with the last link; bytes freed."""
    behind = blob_of(blob)
    freed = _unlink(blob)
    store = Path(os.path.normpath(root / "blobs"))
    if behind == blob or not behind.is_relative_to(store):
        return freed
    with _flock(behind.with_name(behind.name + ".lock")):
        for other in root.glob("*--*/blobs/*"):
            if other.is_symlink() and blob_of(other) == behind:
                return freed
        behind.with_name(behind.name + ".refs").unlink(missing_ok=True)
        return freed + _unlink(behind)


def _unlink(path: Path) -> int:
    """Remove one file or link; bytes of content that were in it itself."""
    try:
        stat = path.lstat()
        path.unlink()
    except FileNotFoundError:
        return 0
    return 0 if S_ISLNK(stat.st_mode) or stat.st_nlink > 1 else stat.st_size


def _remove_empty(folder: Path, stop: Path) -> None:
    """Remove folders that have become empty, upwards."""
    with suppress(OSError):
        while folder != stop:
            folder.rmdir()
            folder = folder.parent


def _remove_tree(folder: Path, root: Path) -> int:
    """Remove what is left of a repository, its locks included; bytes freed."""
    freed = 0
    for top in (folder, root / ".locks" / folder.name):
        for inside, folders, names in os.walk(top, topdown=False):
            for name in names + [f for f in folders if Path(inside, f).is_symlink()]:
                path = Path(inside, name)
                freed += _drop_blob(path, root) if path.parent == folder / "blobs" else _unlink(path)
            os.rmdir(inside)
    with suppress(OSError):
        (root / ".locks").rmdir()
    return freed


@contextmanager
def _unlocked(locks: Path, partials: Collection[PartialFile], repo: str) -> Iterator[None]:
    """Holds the locks of partial files meanwhile; raises where another program has one."""
    held: list[int] = []
    try:
        for partial in partials:
            lock = locks / f"{partial.file.name.removesuffix(PARTIAL).split('.')[0]}.lock"
            with suppress(FileNotFoundError):
                held.append(os.open(lock, os.O_RDWR | os.O_CLOEXEC))
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise WriteFailure(
            f"another program is fetching a file of {repo} right now", "wait for it, or stop it"
        ) from None
    finally:
        for fd in held:
            os.close(fd)


@contextmanager
def _flock(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
