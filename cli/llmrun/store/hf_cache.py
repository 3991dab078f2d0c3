"""The Hugging Face cache on disk: where it is and what it holds; models are kept here, so tools share them.

A repository is a folder `models--USER--NAME`. `blobs/` holds contents under their digests,
`snapshots/COMMIT/` the repository's file names as relative links to them, `refs/main` the commit that `main`
stood for when it was last fetched; a broken-off download is `blobs/DIGEST.incomplete`. Where the cache lies
follows the rule that the Hub's client documents ("Environment variables" of huggingface_hub). It is computed
here, because local commands must not wait for that package to load.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import NetworkFailure, UsageError
from llmrun.gguf.text import printable

PARTIAL = ".incomplete"
NOTE = ".incomplete.json"
_PREFIX = "models--"
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_NAME}/{_NAME}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of a repository that is wholly on this machine.

    `path` is its name in the repository at `commit`; `current` tells whether `main` stood for that commit
    when it was last fetched. `file` is the path to open, `blob` the content it leads to. `used_s` is when
    the content was last read, in seconds since the epoch.
    """

    repo: str
    path: str
    commit: str
    current: bool
    file: Path
    blob: Path
    size_bytes: int
    used_s: float


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A broken-off download. `path` and `total_bytes` are known only where llmrun began it."""

    repo: str
    path: str
    file: Path
    size_bytes: int
    total_bytes: int | None


def hub_cache_dir() -> Path:
    """Where the Hub's client keeps files: HF_HUB_CACHE, else under HF_HOME, else under the user's cache."""
    home = os.path.join(os.path.expanduser("~"), ".cache")
    hf_home = _expanded(os.getenv("HF_HOME", os.path.join(os.getenv("XDG_CACHE_HOME", home), "huggingface")))
    older = os.getenv("HUGGINGFACE_HUB_CACHE", os.path.join(hf_home, "hub"))
    return Path(_expanded(os.getenv("HF_HUB_CACHE", older)))


def _expanded(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))


def is_repo_name(text: str) -> bool:
    """Whether `text` can name a repository: `user/name`, without `--` or `..`, as the Hub allows."""
    return _REPO.fullmatch(text) is not None and "--" not in text and ".." not in text


def repo_folder(repo: str, root: Path | None = None) -> Path:
    """Folder of a repository in the cache, which need not exist. Raises `UsageError` for an unusable name."""
    if not is_repo_name(repo):
        raise UsageError(
            f"{printable(repo)} cannot be a repository's name", "write it as on the Hub: user/name"
        )
    return (root or hub_cache_dir()) / (_PREFIX + repo.replace("/", "--"))


def safe_parts(path: str) -> tuple[str, ...]:
    """Components of a repository's file name, fit to be joined to a folder without ever leaving it.

    Raises `NetworkFailure` for a name with an empty, `.` or `..` component, one that is absolute, has a
    backslash, a drive letter, a control character, or is too long for a file system.
    """
    parts = tuple(path.split("/"))
    if (
        any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts)
        or "\\" in path
        or _DRIVE.match(path)
        or any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in path)
    ):
        raise NetworkFailure(
            f"the Hub names a file {printable(path)!r}, which could be stored outside the cache",
            "do not use this repository",
        )
    return parts


def is_commit(text: str) -> bool:
    """Whether `text` is a full commit id."""
    return _COMMIT.fullmatch(text) is not None


def cached_repos(root: Path | None = None) -> tuple[str, ...]:
    """Names of the model repositories that have a folder in the cache, in order of the alphabet."""
    folders = [entry.name for entry in _entries(root or hub_cache_dir()) if os.path.isdir(entry.path)]
    names = (name.removeprefix(_PREFIX).replace("--", "/") for name in folders if name.startswith(_PREFIX))
    return tuple(sorted(name for name in names if is_repo_name(name)))


def find_repo(repo: str, root: Path | None = None) -> str:
    """The name under which `repo` is cached: its own, else one that differs in letter case; else itself."""
    if os.path.isdir(repo_folder(repo, root)):  # also where the cache may not be entered
        return repo
    return next((name for name in cached_repos(root) if name.lower() == repo.lower()), repo)


def current_commit(repo: str, root: Path | None = None, revision: str = "main") -> str:
    """The commit that `revision` stood for when it was last fetched; empty if it never was."""
    try:
        commit = (repo_folder(repo, root) / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if is_commit(commit) else ""


def cached_files(repo: str, root: Path | None = None) -> tuple[CachedFile, ...]:
    """Every complete file of every snapshot: those of the current commit first, then the newest snapshots.

    The same path may come several times, once for each commit that has it.
    """
    folder = repo_folder(repo, root)
    current = current_commit(repo, root)
    snapshots = [entry for entry in _entries(folder / "snapshots") if is_commit(entry.name)]
    ranked = sorted(snapshots, key=lambda e: (e.name != current, -_changed_s(Path(e.path)), e.name))
    return tuple(
        found for entry in ranked for found in _snapshot(repo, Path(entry.path), entry.name == current)
    )


def _snapshot(repo: str, snapshot: Path, current: bool) -> Iterator[CachedFile]:
    for folder, _, names in sorted(os.walk(snapshot)):
        for name in sorted(names):
            file = Path(folder, name)
            try:
                stat = file.stat()
            except OSError:  # a link whose blob is gone
                continue
            yield CachedFile(
                repo=repo,
                path=file.relative_to(snapshot).as_posix(),
                commit=snapshot.name,
                current=current,
                file=file,
                blob=blob_of(file),
                size_bytes=stat.st_size,
                used_s=stat.st_atime,
            )


def blob_of(file: Path) -> Path:
    """What a snapshot's entry leads to, one link further; the entry itself where it is no link."""
    try:
        return Path(os.path.normpath(file.parent / os.readlink(file)))
    except OSError:
        return file


def partial_files(repo: str, root: Path | None = None) -> tuple[PartialFile, ...]:
    """Broken-off downloads of a repository, also those of other tools, which are never resumed."""
    blobs = repo_folder(repo, root) / "blobs"
    found = []
    for entry in sorted(_entries(blobs), key=lambda e: e.name):
        if not entry.name.endswith((PARTIAL, ".downloadInProgress")) or not os.path.isfile(entry.path):
            continue
        path, total = read_note(Path(entry.path).with_name(entry.name.removesuffix(PARTIAL) + NOTE))
        found.append(PartialFile(repo, path, Path(entry.path), entry.stat().st_size, total))
    return tuple(found)


def read_note(note: Path) -> tuple[str, int | None]:
    """Path and announced size that llmrun noted beside a partial file; empty and None without a note."""
    try:
        entry = json.loads(note.read_text(encoding="utf-8"))
        path, size = entry["path"], entry["size_bytes"]
    except (OSError, ValueError, TypeError, KeyError):
        return "", None
    return (path, size) if isinstance(path, str) and isinstance(size, int) else ("", None)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
