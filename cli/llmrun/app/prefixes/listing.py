"""`llmrun cache`: what prefixes are kept on disk, and how to be rid of them."""

from __future__ import annotations

from llmrun.app.loading import PREFIX_FOLDER
from llmrun.app.prefixes.disk import prefix_store
from llmrun.app.settings import SettingSources
from llmrun.config.dirs import user_cache_dir
from llmrun.reports.cache import CacheReport, StoredPrefix
from llmrun.store.snapshots import SnapshotStore


def list_prefixes(sources: SettingSources) -> CacheReport:
    """Everything that is kept, of all models.

    Raises:
        UsageError: a setting is wrong.
    """
    store = _store(sources)
    found = store.all()
    prefixes = tuple(
        StoredPrefix(
            path=str(one.path),
            model=one.model,
            title=one.title,
            tokens=len(one.tokens),
            checkpoint_tokens=tuple(place.position for place in one.places[1:]),
            size_bytes=one.size_bytes,
            used_s=one.used_s,
            settings=one.settings,
        )
        for one in found.snapshots
    )
    return CacheReport(
        str(store.folder), store.limit(), store.used_bytes(), prefixes, found.damaged, found.foreign
    )


def clear_prefixes(sources: SettingSources) -> int:
    """Remove everything that is kept; returns the bytes that were freed.

    Raises:
        UsageError: a setting is wrong.
        WriteFailure: something cannot be removed.
    """
    return _store(sources).clear()


def _store(sources: SettingSources) -> SnapshotStore:
    return prefix_store(user_cache_dir(sources.env) / PREFIX_FOLDER, sources.resolve().context)
