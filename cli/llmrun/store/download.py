"""Fetch files of a repository into the Hugging Face cache, so that they are right or not there at all.

One file after the other, each under the lock that the Hub's client takes for the same blob. A broken-off file
goes on where it was, also in a later run; it becomes visible only when its digest is the one the Hub
advertises. The revision is pointed at the new commit last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG

from llmrun.errors import ModelNotFound, NetworkFailure
from llmrun.reports.download import (
    Downloaded,
    DownloadEvent,
    FileChecked,
    FileDone,
    FileProgress,
    FileRetried,
    FileStarted,
    FileWaiting,
    HubAwaited,
    Verified,
)
from llmrun.store.address import ContentChanged
from llmrun.store.fetch import Fetch, Patience, RangesIgnored, Setback
from llmrun.store.hf_cache import hub_cache_dir, is_commit, repo_folder, safe_parts
from llmrun.store.hub import Hub
from llmrun.store.listing import Listing
from llmrun.store.partial import Partial, Stamp, check_space, link, outdated, stamp_of, writing
from llmrun.store.repo_files import RepoFile

RESERVE_BYTES = 512 << 20
"""Free space that a download leaves on the disk."""
_EVENT_EVERY_S = 0.1
_LOCK_POLL_S = 0.1
_FRESH_STARTS = 3


def download(
    hub: Hub,
    listing: Listing,
    files: Sequence[RepoFile],
    *,
    root: Path | None = None,
    connections: int = 4,
    patience: Patience | None = None,
    damaged: Mapping[str, Stamp] | None = None,
) -> Iterator[DownloadEvent]:
    """Bring `files` of `listing` into the cache at `root` (default: where the Hub's client keeps it).

    What is there already is not fetched, unless it still is what `damaged` names by its path. Ends with
    `Downloaded`. Closing the generator, or Ctrl-C, leaves the partial file for the next run. Raises
    `NetworkFailure` (also where the digest is wrong twice), `ModelNotFound`, and `WriteFailure` for a disk
    that is too small, full, or cannot be written.
    """
    task = _Task(hub, listing, root or hub_cache_dir(), connections, patience or Patience(), damaged or {})
    for attempt in range(_FRESH_STARTS):
        named = [task.named(file) for file in files]
        try:
            yield from task.run(named)
            return
        except ContentChanged as change:
            newer = hub.listing(listing.repo, listing.revision)
            fresh = _same_paths(newer, files)
            if attempt == _FRESH_STARTS - 1 or fresh == list(files):
                raise
            files, task = fresh, replace(task, listing=newer)
            yield FileRetried(change.path, change.message, 0.0, 0)


def _same_paths(listing: Listing, files: Sequence[RepoFile]) -> list[RepoFile]:
    known = {file.path: file for file in listing.files}
    missing = [file.path for file in files if file.path not in known]
    if missing:
        raise ModelNotFound(f"{missing[0]} was removed from {listing.repo} meanwhile", "choose another file")
    return [known[file.path] for file in files]


@dataclass(slots=True)
class _Tally:
    """Bytes of the files before the present one, and of all."""

    total: int
    before: int = 0
    received: int = 0
    shown_s: float = 0.0

    def due(self) -> bool:
        """Whether enough time has passed since the last event of this kind."""
        now = time.monotonic()
        if now - self.shown_s < _EVENT_EVERY_S:
            return False
        self.shown_s = now
        return True

    def progress(self, file: RepoFile, done: int, received_before: int) -> FileProgress:
        """How far the present file is."""
        received = self.received - received_before
        return FileProgress(file.path, done, file.size_bytes, received, self.before + done, self.total)


@dataclass(frozen=True, slots=True)
class _Task:
    hub: Hub
    listing: Listing
    root: Path
    connections: int
    patience: Patience
    damaged: Mapping[str, Stamp]

    @property
    def folder(self) -> Path:
        return repo_folder(self.listing.repo, self.root)

    def named(self, file: RepoFile) -> RepoFile:
        """The file with a digest; asks the Hub where its listing gave none."""
        safe_parts(file.path)
        if file.blob_name:
            return file
        etag = self.hub.locate(self.listing, file).etag.lower()
        if set(etag) <= set("0123456789abcdef") and len(etag) in (40, 64):
            return replace(file, sha256=etag) if len(etag) == 64 else replace(file, blob_id=etag)
        raise NetworkFailure(
            f"the Hub gives no digest for {file.path}, so it cannot be verified", "choose another repository"
        )

    def run(self, files: Sequence[RepoFile]) -> Iterator[DownloadEvent]:
        rest = sum(self._missing_bytes(file) for file in files)
        if rest:
            check_space(self.root, rest, RESERVE_BYTES)
        tally = _Tally(sum(file.size_bytes for file in files))
        for index, file in enumerate(files, 1):
            yield FileStarted(file.path, index, len(files), file.size_bytes, self._partial(file).kept_bytes())
            yield from self._one(file, tally)
            tally.before += file.size_bytes
        self._point_revision()
        places = tuple(self._place(file) for file in files)
        yield Downloaded(self.listing.repo, self.listing.commit, places, tally.total, tally.received)

    def _place(self, file: RepoFile) -> Path:
        return self.folder.joinpath("snapshots", self.listing.commit, *safe_parts(file.path))

    def _blob(self, file: RepoFile) -> Path:
        return self.folder / "blobs" / file.blob_name

    def _partial(self, file: RepoFile) -> Partial:
        return Partial(self._blob(file), file)

    def _is_there(self, path: Path, file: RepoFile) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        return (
            S_ISREG(found.st_mode)
            and found.st_size == file.size_bytes
            and stamp_of(found) != self.damaged.get(file.path)
        )

    def _missing_bytes(self, file: RepoFile) -> int:
        if self._is_there(self._place(file), file) or self._is_there(self._blob(file), file):
            return 0
        return file.size_bytes - self._partial(file).kept_bytes()

    # -- one file -----------------------------------------------------------------------------------------

    def _one(self, file: RepoFile, tally: _Tally) -> Iterator[DownloadEvent]:
        place, blob, received = self._place(file), self._blob(file), 0
        verified: Verified = "size"
        if not self._is_there(place, file):
            with ExitStack() as held:
                yield from self._lock(file, held)
                if not (self._is_there(place, file) or self._is_there(blob, file)):
                    before, partial = tally.received, self._partial(file)
                    with partial.opened():
                        yield from self._fill(partial, file, tally)
                        partial.finish()
                    received, verified = tally.received - before, partial.verified
                    self._drop_outdated(file)
                if not self._is_there(place, file):
                    with writing(self.folder):
                        link(blob, place)
        yield FileDone(file.path, place, file.size_bytes, received, verified)

    def _lock(self, file: RepoFile, held: ExitStack) -> Iterator[DownloadEvent]:
        """Take the client's own lock on this blob, however long somebody else fetches it."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        path = self.root / ".locks" / self.folder.name / f"{file.blob_name}.lock"
        last = -1
        while True:
            with writing(path.parent), suppress(TimeoutError):
                path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(WeakFileLock(path, timeout=_LOCK_POLL_S))
                return
            done = _size(self._partial(file).path)
            if done != last:
                last = done
                yield FileWaiting(file.path, done, file.size_bytes)

    def _fill(self, partial: Partial, file: RepoFile, tally: _Tally) -> Iterator[DownloadEvent]:
        """Bring the partial file to its end; its digest is right afterwards."""
        kept = partial.kept_bytes()
        for done in partial.resume():
            if tally.due():
                yield FileChecked(file.path, done, kept)
        wrong = ignored = 0
        while True:
            try:
                yield from self._receive(partial, file, tally)
            except RangesIgnored as error:
                ignored += 1
                if ignored == _FRESH_STARTS:
                    raise
                reason = error.message
            else:
                if partial.matches():
                    return
                wrong += 1
                if wrong == 2:
                    raise self._wrong(partial, file)
                reason = f"its digest is {partial.digest()}, not {file.blob_name}"
            partial.restart()
            yield FileRetried(file.path, reason, 0.0, 0)

    def _receive(self, partial: Partial, file: RepoFile, tally: _Tally) -> Iterator[DownloadEvent]:
        if partial.done_bytes == file.size_bytes:
            return
        before = tally.received
        with Fetch(
            self.hub, self.listing, file, partial.done_bytes, self.connections, self.patience
        ) as fetch:
            for item in fetch.blocks():
                tally.received = before + fetch.received_bytes
                if isinstance(item, HubAwaited):
                    yield item
                    continue
                if isinstance(item, Setback):
                    yield FileRetried(file.path, item.reason, item.wait_s, partial.done_bytes)
                    continue
                partial.write(item)
                if partial.done_bytes < file.size_bytes and tally.due():
                    yield tally.progress(file, partial.done_bytes, before)
            tally.received = before + fetch.received_bytes
        yield tally.progress(file, partial.done_bytes, before)

    def _wrong(self, partial: Partial, file: RepoFile) -> NetworkFailure:
        partial.discard()
        return NetworkFailure(
            f"{file.path} came twice with a wrong content: its digest is {partial.digest()},"
            f" the Hub says {file.blob_name}; it was removed",
            "try again later, over another network, or with another repository",
        )

    def _drop_outdated(self, file: RepoFile) -> None:
        """Remove partial files of older contents of the same path, unless somebody is writing them."""
        for blob in outdated(self._blob(file), file):
            old = RepoFile(file.path, 0, blob.name)
            with ExitStack() as held:
                if next(self._lock(old, held), None) is None:
                    Partial(blob, old).discard()

    def _point_revision(self) -> None:
        """Let the revision's name stand for the commit whose files are here now."""
        if is_commit(self.listing.revision):
            return
        ref = self.folder.joinpath("refs", *safe_parts(self.listing.revision))
        with writing(ref.parent):
            if _text(ref) == self.listing.commit:
                return
            ref.parent.mkdir(parents=True, exist_ok=True)
            beside = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
            beside.write_text(self.listing.commit, encoding="ascii")
            os.replace(beside, ref)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
