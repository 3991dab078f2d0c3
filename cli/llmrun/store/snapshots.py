"""The folder of snapshots: one file a prefix, found by model and settings, bounded in bytes.

Any number of processes use it at once without locks. A file is written under a temporary name and then
renamed, so that nobody sees it half done, and what a killed process leaves behind is not looked at and
removed an hour later. A reader that finds a file gone, cut or changed has missed, no more. Nothing is
flushed to the disk: after a power cut a file may be damaged, which its check sum tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmrun.errors import WriteFailure
from llmrun.prefix.eviction import over_budget
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


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """Snapshots under `folder`. `bound_bytes` None: the default bound."""

    folder: Path
    bound_bytes: int | None = None
    now_s: Callable[[], float] = field(default=time.time)

    def of_model(self, digest: str) -> Found:
        """Headers of all usable snapshots of a model."""
        found, damaged, foreign = [], 0, 0
        for path in _files(self._folder_of(digest)):
            try:
                snapshot = read_snapshot(path)
                if snapshot.model != digest or path != self._path(snapshot):
                    raise Foreign("it belongs elsewhere")
            except OSError:
                continue  # removed meanwhile, or not ours to read
            except Foreign:
                foreign += 1
            except Damaged:
                damaged += 1
                self.remove(path)
            else:
                found.append(snapshot)
        found.sort(key=lambda snapshot: -snapshot.used_s)
        return Found(tuple(found), damaged, foreign)

    def all(self) -> Found:
        """Headers of all usable snapshots of all models."""
        models = [self.of_model(entry.name) for entry in _entries(self.folder) if entry.is_dir()]
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
        place = next((p for p in (self.folder, *self.folder.parents) if p.exists()), None)
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
    ) -> Path:
        """Add a snapshot; the longest unused make room for it.

        Raises:
            WriteFailure: the folder or the file cannot be written.
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
                )
                temporary.replace(path)
            finally:
                with suppress(OSError):
                    temporary.unlink()
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
        """Remove everything; returns the bytes that were freed.

        Raises:
            WriteFailure: something cannot be removed.
        """
        freed = 0
        for folder in _entries(self.folder):
            if not folder.is_dir():
                continue
            for entry in _entries(folder):
                try:
                    size = entry.stat().st_size
                    entry.unlink()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise WriteFailure(f"cannot remove {entry}: {error.strerror}") from error
                freed += size
            with suppress(OSError):
                folder.rmdir()
        return freed

    def speeds(self) -> Speeds:
        """How fast the folder was when it was last measured."""
        try:
            record = json.loads((self.folder / _SPEEDS).read_text("utf-8"))
            return Speeds(float(record["write"]), float(record["read"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Speeds()

    def measured(self, speeds: Speeds) -> None:
        """Remember speeds; those that are 0 stay as they were."""
        before = self.speeds()
        record = {"write": speeds.write or before.write, "read": speeds.read or before.read}
        temporary = self.folder / f"{secrets.token_hex(8)}{_UNFINISHED}"
        with suppress(OSError):
            temporary.write_text(json.dumps(record), encoding="utf-8")
            temporary.replace(self.folder / _SPEEDS)

    def _folder_of(self, digest: str) -> Path:
        return self.folder / digest

    def _path(self, snapshot: Snapshot) -> Path:
        return self._folder_of(snapshot.model) / _name(snapshot.settings, snapshot.tokens)

    def _sizes(self) -> list[tuple[Path, int, float]]:
        """Path, size and last use of each snapshot; unfinished ones that were given up are removed."""
        found = []
        for folder in _entries(self.folder):
            for entry in _entries(folder) if folder.is_dir() else ():
                with suppress(OSError):
                    stat = entry.stat()
                    if entry.suffix == _UNFINISHED and self.now_s() - stat.st_mtime > _STALE_S:
                        entry.unlink()
                    elif entry.suffix == SUFFIX:
                        found.append((entry, stat.st_size, stat.st_mtime))
        return found

    def _evict(self, wanted_bytes: int) -> None:
        for path in over_budget(self._sizes(), max(0, self.limit() - wanted_bytes)):
            self.remove(path)


def _name(settings: Mapping[str, str], tokens: Sequence[int]) -> str:
    """A snapshot's file name: one for each prefix under each set of settings."""
    told = json.dumps(sorted(settings.items())).encode() + array("i", tokens).tobytes()
    return hashlib.sha256(told).hexdigest()[:32] + SUFFIX


def _files(folder: Path) -> list[Path]:
    return [entry for entry in _entries(folder) if entry.suffix == SUFFIX]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
