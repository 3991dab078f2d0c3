"""What happens while files are fetched, as values: made by `store`, passed on by `app`, shown by `ui`.

For each file: `FileStarted` (after `FileWaiting` where another process holds it, and `FileChecked` steps
where a kept part is read again), `FileProgress` a few times a second, `HubAwaited` while nothing comes (also
before the first file), `FileRetried` after each setback, and one `FileDone`, or `FileDamaged` where what is
here is only checked. The last event of a download is `Downloaded`.
Sizes are bytes, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verified = Literal["sha256", "git", "size"]


@dataclass(frozen=True, slots=True)
class HubAwaited:
    """Nothing has come from `host` for `waited_s`, and it is still waited for."""

    host: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class FileWaiting:
    """Another process is fetching this file; it holds `done_bytes` of it by now."""

    path: str
    done_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileChecked:
    """`done_bytes` of the `kept_bytes` from an earlier, broken-off run have been read again."""

    path: str
    done_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class FileStarted:
    """File `index` of `count` (from 1); `kept_bytes` of it are here from an earlier run."""

    path: str
    index: int
    count: int
    size_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class FileProgress:
    """`done_bytes` of the file are on the disk; `received_bytes` came over the network in this run.

    `all_done_bytes` of `all_size_bytes` count every file of this download.
    """

    path: str
    done_bytes: int
    size_bytes: int
    received_bytes: int
    all_done_bytes: int
    all_size_bytes: int


@dataclass(frozen=True, slots=True)
class FileRetried:
    """The transfer broke for `reason`; it goes on from `done_bytes` (0: anew) after `wait_s`."""

    path: str
    reason: str
    wait_s: float
    done_bytes: int


@dataclass(frozen=True, slots=True)
class FileDamaged:
    """What is here of this file is not what the Hub advertised: `damage` says in what."""

    path: str
    damage: str


@dataclass(frozen=True, slots=True)
class FileDone:
    """The file is in the cache at `file`. `received_bytes` is 0 where it was there already.

    `verified` says what was compared with the Hub's listing: the SHA-256, the git object id, or the size.
    """

    path: str
    file: Path
    size_bytes: int
    received_bytes: int
    verified: Verified


@dataclass(frozen=True, slots=True)
class Downloaded:
    """All files are in the cache, in the order they were asked for, and the revision points at them."""

    repo: str
    commit: str
    files: tuple[Path, ...]
    size_bytes: int
    received_bytes: int


DownloadEvent = (
    HubAwaited
    | FileWaiting
    | FileChecked
    | FileStarted
    | FileProgress
    | FileRetried
    | FileDamaged
    | FileDone
    | Downloaded
)
