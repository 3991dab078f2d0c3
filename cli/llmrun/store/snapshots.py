"""The folder of snapshots: one file a prefix, found by model and settings, bounded in bytes.

Any number of processes use it at once without locks. A file is written under a temporary name and then
renamed, so that nobody sees it half done, and what a killed process leaves behind is not looked at and
removed an hour later. A reader that finds a file gone, cut or changed has missed, no more. Nothing is
flushed to the disk: after a power cut a file may be damaged, which its check sum tells.

A file's name begins with a sum of its first tokens, so that a search opens the files that can serve a prompt,
and of thousands of others only a few, to tell why they do not.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from llmrun.errors import WriteFailure
from llmrun.prefix.eviction import over_budget
from llmrun.store.patience import ENDLESS, Patience
from llmrun.store.snapshot_file import Damaged, Foreign, Place, Snapshot, read_snapshot, write_snapshot
from llmrun.units import GIB

SUFFIX, _UNFINISHED = ".prefix", ".part"
_SPEEDS = "speeds.json"
_STALE_S = 3600.0
DISK_SHARE = 10
MOST_BYTES = 16 * GIB
"""By default a tenth of the disk space that would be free without the snapshots, and at most this."""

LARGEST_SHARE = 4
"""A snapshot may take at most this part (1/4) of the bound."""

HEAD_TOKENS = 64
"""What has fewer tokens in common with a prompt is evaluated again sooner than it is read."""

MOST_OTHERS = 16
"""Snapshots that begin otherwise than a prompt and are compared with it all the same, the last used first."""


@dataclass(frozen=True, slots=True)
class Found:
    """Snapshots, the last used first. `damaged` files beside them were removed, `foreign` ones left alone."""

    snapshots: tuple[Snapshot, ...] = ()
    damaged: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured on this folder, in bytes a second; 0 where it was not yet."""

    write: float = 0.0
    read: float = 0.0
    hash: float = 0.0


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """Snapshots under `folder`. `bound_bytes` None: the default bound."""

    folder: Path
    bound_bytes: int | None = None
    now_s: Callable[[], float] = field(default=time.time)

    def of_model(self, digest: str, *, begin: Sequence[int] | None = None) -> Found:
        """Headers of usable snapshots of a model: all, or those that may serve a prompt that begins with the
        tokens `begin`, and some others."""
        paths = self._by_use(digest)
        if begin is not None:
            head = _head(begin)
            others = [path for path in paths if not path.name.startswith(head)][:MOST_OTHERS]
            paths = [path for path in paths if path.name.startswith(head)] + others
        read = list(self._read(paths, digest))
        found = sorted((one for one in read if isinstance(one, Snapshot)), key=lambda one: -one.used_s)
        damaged, foreign = (sum(isinstance(one, kind) for one in read) for kind in (Damaged, Foreign))
        return Found(tuple(found), damaged, foreign)

    def last_used(self, digest: str) -> Iterator[Snapshot]:
        """The usable snapshots of a model, the last used first, each read when it is asked for."""
        return (one for one in self._read(self._by_use(digest), digest) if isinstance(one, Snapshot))

    def _read(self, paths: Iterable[Path], digest: str) -> Iterator[Snapshot | Damaged | Foreign]:
        """The headers of some files, or what is wrong with them; damaged ones are removed."""
        for path in paths:
            try:
                snapshot = read_snapshot(path)
            except OSError:
                continue  # removed meanwhile, or not ours to read
            except Foreign as foreign:
                yield foreign
            except Damaged as damaged:
                self.remove(path)
                yield damaged
            else:
                yield snapshot if snapshot.model == digest else Foreign("it belongs to another model")

    def all(self) -> Found:
        """Headers of all usable snapshots of all models."""
        models = [
            self.of_model(entry.name)
            for entry in _entries(self.folder)
            if entry.is_dir(follow_symlinks=False)
        ]
        snapshots = sorted((s for found in models for s in found.snapshots), key=lambda s: -s.used_s)
        damaged, foreign = (sum(getattr(f, name) for f in models) for name in ("damaged", "foreign"))
        return Found(tuple(snapshots), damaged, foreign)

    def load(self, snapshot: Snapshot) -> list[memoryview]:
        """The states of a snapshot, which counts as used now. Raises Damaged, after which it is gone."""
        try:
            states = snapshot.states()
        except Damaged:
            self.remove(snapshot.path)
            raise
        with suppress(OSError):
            os.utime(snapshot.path, (self.now_s(), self.now_s()))
        return states

    def limit(self) -> int:
        """The bound in bytes."""
        if self.bound_bytes is not None:
            return self.bound_bytes
        place = next((p for p in (self.folder, *self.folder.parents) if os.path.exists(p)), None)
        free = shutil.disk_usage(place).free if place else 0
        return min((free + self.used_bytes()) // DISK_SHARE, MOST_BYTES)

    def used_bytes(self) -> int:
        """Bytes of all snapshots, damaged ones included."""
        return sum(size for _, size, _ in self._sizes())

    def write(
        self,
        *,
        model: str,
        settings: Mapping[str, str],
        title: str,
        tokens: Sequence[int],
        states: Sequence[tuple[Place, bytearray | memoryview]],
        prefill_s: float,
        history: str = "",
        patience: Patience = ENDLESS,
    ) -> Path:
        """Add a snapshot; the longest unused make room for it.

        Raises:
            WriteFailure: the folder or the file cannot be written.
            FileNotFoundError: somebody has cleared the folder meanwhile.
            GaveUp: writing was to end before its end.
        """
        path = self._folder_of(model) / _name(settings, tokens)
        temporary = path.with_name(f"{secrets.token_hex(8)}{_UNFINISHED}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._evict(sum(place.size_bytes for place, _ in states))
            try:
                write_snapshot(
                    temporary,
                    model=model,
                    settings=settings,
                    title=title,
                    tokens=tokens,
                    states=states,
                    prefill_s=prefill_s,
                    history=history,
                    patience=patience,
                )
                temporary.replace(path)
            finally:
                with suppress(OSError):
                    temporary.unlink()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise WriteFailure(
                f"cannot keep a prefix in {self.folder}: {error.strerror}",
                "--no-prefix-cache does without, `llmrun cache clear` makes room",
            ) from error
        return path

    def remove(self, path: Path) -> None:
        """Remove a snapshot; another process may have been faster."""
        with suppress(OSError):
            path.unlink()

    def clear(self) -> int:
        """Remove everything but the speeds and what is no file; returns the bytes that were freed.

        Raises:
            WriteFailure: something cannot be removed; the rest is.
        """
        freed, failed = 0, None
        folders = [entry for entry in _entries(self.folder) if entry.is_dir(follow_symlinks=False)]
        files = [entry for folder in folders for entry in _entries(folder)]
        files += [entry for entry in _entries(self.folder) if entry.name.endswith(_UNFINISHED)]
        for entry in files:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    os.unlink(entry.path)
                    freed += size
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = failed or WriteFailure(f"cannot remove {entry.path}: {error.strerror}")
        for folder in folders:
            with suppress(OSError):
                os.rmdir(folder.path)
        if failed:
            raise failed
        return freed

    def speeds(self) -> Speeds:
        """How fast the folder was when it was last measured."""
        file = self.folder / _SPEEDS
        try:
            record = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            return Speeds(
                **{name: max(0.0, float(record.get(name, 0.0))) for name in ("write", "read", "hash")}
            )
        except (OSError, ValueError, TypeError, AttributeError):
            return Speeds()

    def measured(self, speeds: Speeds) -> None:
        """Remember speeds; those that are 0 stay as they were. One slow moment halves a speed at most."""
        if not any(astuple(speeds)):
            return
        before = self.speeds()
        known = asdict(before)
        record = {
            name: max(speed, known[name] / 2) if speed else known[name]
            for name, speed in asdict(speeds).items()
        }
        temporary = self.folder / f"{secrets.token_hex(8)}{_UNFINISHED}"
        with suppress(OSError):
            temporary.write_text(json.dumps(record), encoding="utf-8")
            temporary.replace(self.folder / _SPEEDS)

    def _folder_of(self, digest: str) -> Path:
        return self.folder / digest

    def _by_use(self, digest: str) -> list[Path]:
        """A model's files, the last used first."""
        used: list[tuple[float, str]] = []
        for entry in _entries(self._folder_of(digest)):
            with suppress(OSError):
                if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                    used.append((entry.stat().st_mtime, entry.path))
        return [Path(path) for _, path in sorted(used, reverse=True)]

    def _sizes(self) -> list[tuple[Path, int, float]]:
        """Path, size and last use of each snapshot; unfinished ones that were given up are removed.

        Where the clock has been set back, a use that lies ahead may be any time ago and counts as the first.
        """
        found, now_s = [], self.now_s()
        top = _entries(self.folder)
        folders = [entry for entry in top if entry.is_dir(follow_symlinks=False)]
        for entry in [*top, *(entry for folder in folders for entry in _entries(folder))]:
            with suppress(OSError):
                if not entry.is_file(follow_symlinks=False):
                    continue
                stat = entry.stat()
                ahead = stat.st_mtime - now_s > _STALE_S
                if entry.name.endswith(_UNFINISHED) and (ahead or now_s - stat.st_mtime > _STALE_S):
                    os.unlink(entry.path)
                elif entry.name.endswith(SUFFIX):
                    found.append((Path(entry.path), stat.st_size, 0.0 if ahead else stat.st_mtime))
        return found

    def _evict(self, wanted_bytes: int) -> None:
        for path in over_budget(self._sizes(), max(0, self.limit() - wanted_bytes)):
            self.remove(path)


def _name(settings: Mapping[str, str], tokens: Sequence[int]) -> str:
    """A snapshot's file name: one for each prefix under each set of settings."""
    told = json.dumps(sorted(settings.items())).encode() + array("i", tokens).tobytes()
    return f"{_head(tokens)}-{hashlib.sha256(told).hexdigest()[:24]}{SUFFIX}"


def _head(tokens: Sequence[int]) -> str:
    """A sum of the first tokens: equal for all that have so many in common."""
    return hashlib.sha256(array("i", tokens[:HEAD_TOKENS]).tobytes()).hexdigest()[:8]


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
