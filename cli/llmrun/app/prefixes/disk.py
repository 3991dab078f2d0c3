"""Snapshots of prefixes on disk: which one serves a prompt, and whether a sequence is worth one.

A snapshot fits an engine whose K/V mean the same: of the same model (by the digest of its files), with the
same number formats, window, layout of the context, positions and build of the library. The digest is needed
before anything can be found or kept. Where it is not remembered nothing was kept of the file as it is, so
that a search ends there at once; it is computed when the first prefix is kept, after an answer, and its time
counts among the costs of that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmrun.app.loading import Opened
from llmrun.app.memory.host_memory import host_memory
from llmrun.app.plan import wanted_ctx
from llmrun.app.prefixes.memory import Kept
from llmrun.app.prefixes.settings import layout_settings, rope_settings, what_changed
from llmrun.config.views import ContextSettings
from llmrun.engine.api import EngineFacts, State
from llmrun.errors import WriteFailure
from llmrun.events import Notice
from llmrun.prefix.checkpoints import Checkpoint, Way, best_way
from llmrun.prefix.reuse import MemoryKind, common_prefix
from llmrun.prefix.worth import Cost, given_up_s
from llmrun.store.model_digest import (
    ModelFiles,
    Replaced,
    compute_digest,
    remembered_digest,
    time_used,
    unknown_bytes,
)
from llmrun.store.patience import GaveUp, Patience
from llmrun.store.snapshot_file import Damaged, Place, Snapshot
from llmrun.store.snapshots import LARGEST_SHARE, SnapshotStore, Speeds
from llmrun.units import GIB, MIB, format_bytes, format_seconds, format_tokens

log = logging.getLogger("llmrun.prefix")

OTHER_SETTINGS_TOKENS = 32
"""So many tokens must be in common before "settings changed" explains a miss: templates begin alike."""

FEWEST_MEASURED_BYTES = MIB
"""Of fewer bytes the time to open a file is most of what is measured."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found for one prompt. `best` serves `way.tokens` of it, None if nothing serves any.

    `nearest` shares most with the prompt among those that fit the engine, `common` tokens; `other_settings`
    says what was set otherwise where one of another engine shares more. Damaged files were removed.
    """

    best: Snapshot | None = None
    way: Way[int] = field(default_factory=lambda: Way(0))
    nearest: Snapshot | None = None
    common: int = 0
    other_settings: str = ""
    damaged: int = 0
    foreign: int = 0


class DiskPrefixes:
    """The snapshots of one open model. `settings` are what K/V depend on besides its files; `stopped` tells
    that nobody waits for one to be kept. `first_ctx`: what contexts begin with where no size is given."""

    def __init__(
        self,
        store: SnapshotStore,
        files: ModelFiles,
        settings: Callable[[], Mapping[str, str]],
        title: str = "",
        stopped: Callable[[], bool] = lambda: False,
        first_ctx: int | None = None,
    ) -> None:
        self._first_ctx = first_ctx
        self._title = title
        self._stopped = stopped
        self._stage: Path | None = None  # of the conversation under way, read or written last
        self._store = store
        self._files = files
        self._settings = settings

    def search(self, prompt: Sequence[int], facts: EngineFacts) -> Search:
        """Find what serves most of a prompt on an engine."""
        digest = remembered_digest(self._files, self._store.folder)
        if digest is None:
            return Search()
        found, here = self._store.of_model(digest, begin=prompt), dict(self._settings())
        search = Search(damaged=found.damaged, foreign=found.foreign)
        others: list[tuple[int, int, str]] = []  # tokens in common, fewer changes first, and what they are
        for snapshot in found.snapshots:
            common = common_prefix(snapshot.tokens, prompt)
            if snapshot.settings != here:
                changed = what_changed(snapshot.settings, here)
                others.append((common, -len(changed), ", ".join(changed)))
                continue
            if len(snapshot.tokens) > facts.n_ctx_seq:
                others.append((common, -1, f"n_ctx is {facts.n_ctx_seq}, less than its tokens"))
                continue
            if search.nearest is None or common > search.common:
                search = replace(search, nearest=snapshot, common=common)
            way = way_of(snapshot, prompt, facts.memory)
            if way.tokens > search.way.tokens:
                search = replace(search, best=snapshot, way=way)
        common, _, told = max(others, default=(0, 0, ""))
        if common >= max(OTHER_SETTINGS_TOKENS, search.common + 1):
            search = replace(search, other_settings=told)
        return search

    def histories(self) -> Iterator[str]:
        """How the tokens of snapshots came about, the last used first, whatever the settings."""
        digest = remembered_digest(self._files, self._store.folder)
        for snapshot in self._store.last_used(digest) if digest else ():
            if snapshot.history_bytes:
                try:
                    yield snapshot.history()
                except Damaged:
                    continue

    def worth_reading(self, snapshot: Snapshot, gained: int) -> bool:
        """Whether reading a snapshot takes less time than evaluating the `gained` tokens would."""
        cost = Cost(snapshot.size_bytes, read_speed=self._store.speeds().read)
        return gained * snapshot.prefill_s > cost.read_s

    def load(self, snapshot: Snapshot) -> Kept | None:
        """Read a snapshot; None if it is damaged, after which it is gone."""
        began_s = time.perf_counter()
        try:
            whole, *parts = self._store.load(snapshot)
        except Damaged:
            return None
        self._store.measured(Speeds(read=_speed(snapshot.size_bytes, began_s)))
        self._stage = snapshot.path
        checkpoints = tuple(
            Checkpoint(p.position, p.pos_min, p.size_bytes, State(data, p.pos_min, partial=True))
            for p, data in zip(snapshot.places[1:], parts, strict=True)
        )
        return Kept(tuple(snapshot.tokens), State(whole, snapshot.places[0].pos_min), checkpoints)

    def cost(self, size_bytes: int) -> Cost | None:
        """What it costs to keep so many bytes; None where they are too many for the folder, or for memory, or
        the model's files are no longer those that are open."""
        free_bytes = host_memory().free_bytes  # the copy that is written passes through main memory
        if size_bytes * LARGEST_SHARE > self._store.limit() or size_bytes > free_bytes // 2:
            return None
        if not self._files.unchanged:
            return None
        try:
            unknown = unknown_bytes(self._files, self._store.folder)
        except OSError:
            return None
        speeds = self._store.speeds()
        return Cost(size_bytes, unknown, speeds.write, speeds.read, speeds.hash)

    def time_used(self, more_s: float) -> float:
        """Seconds that requests of this model took so far, over all processes, until it has a digest."""
        return time_used(self._files, self._store.folder, more_s)

    def keep(
        self, kept: Kept, prefill_s: float, history: str, kind: MemoryKind, copied_s: float, cost: Cost
    ) -> Iterator[Notice]:
        """Write a snapshot that took `copied_s` to copy out; what it makes superfluous goes.

        It is given up when the user wants to leave, and when it takes much longer than `cost` said.
        """
        patience = Patience(time.monotonic() + given_up_s(cost), self._stopped)
        if cost.hashed_bytes > GIB:
            yield Notice(
                "info", "reading the model's file once, to know it again when prefixes of it are asked for"
            )
        try:
            digest = self._digest(cost.hashed_bytes, patience)
            path = self._written(kept, digest, prefill_s, history, copied_s, patience)
        except (GaveUp, Replaced, FileNotFoundError):  # somebody may have cleared the folder
            return
        except WriteFailure as error:
            yield Notice("warning", f"{error.message}; {error.hint}")
            return
        except OSError as error:
            yield Notice("warning", f"the prefix of this prompt is not kept: {error.strerror}")
            return
        size = format_bytes(kept.size_bytes)
        log.debug("kept on disk: %s, %s, for hits that save up to %s", format_tokens(len(kept.tokens)), size,
                  format_seconds(prefill_s * len(kept.tokens)))  # fmt: skip
        before, self._stage = self._stage, path
        settings = self._settings()
        for old in self._store.of_model(digest, begin=kept.tokens).snapshots:
            if old.path == path or old.settings != settings or not _goes_on(kept, old):
                continue
            if self._first_ctx is not None and len(old.tokens) <= self._first_ctx < len(kept.tokens):
                continue  # a context that has not grown has room for this one only
            if old.path == before or _rewinds(kind):
                self._store.remove(old.path)

    def _digest(self, hashed_bytes: int, patience: Patience) -> str:
        """The model's digest, for which so many bytes are hashed now; how fast that was is remembered."""
        began_s = time.perf_counter()
        try:
            digest = compute_digest(self._files, self._store.folder, patience)
        except GaveUp as gave_up:
            self._store.measured(Speeds(hash=_speed(gave_up.done_bytes, began_s)))
            raise
        self._store.measured(Speeds(hash=_speed(hashed_bytes, began_s)))
        return digest

    def _written(
        self, kept: Kept, digest: str, prefill_s: float, history: str, copied_s: float, patience: Patience
    ) -> Path:
        """Write the file; how fast it was copied and written is remembered."""
        points = [Place(c.position, c.pos_min, c.size_bytes) for c in kept.checkpoints]
        states = [(Place(len(kept.tokens), kept.state.pos_min, kept.state.size_bytes), kept.state.data)]
        states += [(p, c.handle.data) for p, c in zip(points, kept.checkpoints, strict=True)]
        began_s = time.perf_counter() - copied_s
        try:
            path = self._store.write(
                model=digest,
                settings=self._settings(),
                title=self._title,
                tokens=kept.tokens,
                states=states,
                prefill_s=prefill_s,
                history=history,
                patience=patience,
            )
        except GaveUp as gave_up:
            if not gave_up.in_time:
                self._store.measured(Speeds(write=_speed(gave_up.done_bytes, began_s)))
            raise
        self._store.measured(Speeds(write=_speed(kept.size_bytes, began_s)))
        return path


def _speed(n_bytes: int, began_s: float) -> float:
    """Bytes a second; 0, which is not remembered, for so few that they say nothing of more."""
    return n_bytes / (time.perf_counter() - began_s) if n_bytes >= FEWEST_MEASURED_BYTES else 0.0


def way_of(snapshot: Snapshot, prompt: Sequence[int], kind: MemoryKind) -> Way[int]:
    """How a snapshot serves a prompt; a checkpoint's handle is its number."""
    points = [
        Checkpoint(place.position, place.pos_min, place.size_bytes, number)
        for number, place in enumerate(snapshot.places[1:])
    ]
    pos_min = snapshot.places[0].pos_min
    return best_way(snapshot.tokens, prompt, pos_min=pos_min, checkpoints=points, kind=kind)


def _goes_on(kept: Kept, old: Snapshot) -> bool:
    """True if `kept` begins with all tokens of `old`."""
    return common_prefix(kept.tokens, old.tokens) == len(old.tokens)


def _rewinds(kind: MemoryKind) -> bool:
    """True where a sequence serves every prompt that any prefix of it serves."""
    return not kind.n_swa and not kind.recurrent


def disk_prefixes(opened: Opened) -> DiskPrefixes | None:
    """Those of an open model; None where its settings allow none."""
    context = opened.settings.context
    if (
        opened.prefix_folder is None
        or opened.files is None
        or not context.prefix_cache
        or context.prefix_cache_mib == 0
    ):
        return None
    store = prefix_store(opened.prefix_folder, context)
    sized, trained = context.n_ctx not in ("auto", 0), opened.engine.facts.n_ctx_train
    return DiskPrefixes(
        store,
        opened.files,
        lambda: layout_settings(opened.engine.facts, rope_settings(context), sized=sized),
        opened.info.title,
        opened.stopped,
        None if sized else wanted_ctx("auto", trained),
    )


def prefix_store(folder: Path, context: ContextSettings) -> SnapshotStore:
    """The snapshots in `folder`, bounded as the settings say."""
    mib = context.prefix_cache_mib
    return SnapshotStore(folder, None if mib == "auto" else mib * MIB)
