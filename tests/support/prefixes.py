"""A prefix cache that keeps everything: tests use prompts far too short to be worth it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from llmrun.app.prefixes import cache as prefix_cache
from llmrun.app.prefixes import disk
from llmrun.app.prefixes.disk import DiskPrefixes
from llmrun.prefix import worth
from llmrun.store.snapshots import SUFFIX

from tests.support.cli import Cli


def keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every prefix pay however long it takes, and every difference be worth a search."""
    for module, name, value in (
        (worth, "LEAST_SAVED_S", 0.0),
        (prefix_cache, "LEAST_SAVED_S", 0.0),
        (prefix_cache, "SEARCH_S", 0.0),
        (prefix_cache, "FEWEST_COPIED", 1),
        (prefix_cache, "FEWEST_TIMED", 1),
        (prefix_cache, "pays", lambda *_, **__: True),
        (prefix_cache, "memory_budget", lambda: 1 << 24),
        (disk, "given_up_s", lambda _cost: inf),
        (DiskPrefixes, "worth_reading", lambda _self, _snapshot, gained: gained > 0),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def caching(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """llmrun with a cache of its own that keeps everything; `here` only, since a child is not patched."""
    keep_everything(monkeypatch)
    return replace(cli, cache=tmp_path / "cache", env={"LLMRUN_PREFIX_CACHE_MIB": "auto"})


def stored_files(cli: Cli) -> list[Path]:
    """The snapshots on disk."""
    return sorted(cli.cache.glob(f"prefix/*/*{SUFFIX}"))
