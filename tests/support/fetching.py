"""Downloads from the loopback Hub as the tests of the store run them."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from llmrun.reports.download import DownloadEvent, FileDone
from llmrun.store import fetch
from llmrun.store.download import download
from llmrun.store.fetch import Patience
from llmrun.store.hub import Hub

from tests.support.hub import REPO, LoopbackHub
from tests.support.waiting import TIMEOUT_S

QUICK = Patience(attempts=4, backoff_s=0.01)


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a megabyte be fetched the way those of gigabytes are."""
    monkeypatch.setattr(fetch, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(fetch, "_PIECE_MIN", 64 << 10)
    monkeypatch.setattr(fetch, "_PIECE_MAX", 256 << 10)
    monkeypatch.setattr(fetch, "_AHEAD", 1)


def fetched(
    server: LoopbackHub, *, only: str = "", connections: int = 4, read_s: float = TIMEOUT_S
) -> Generator[DownloadEvent, None, None]:
    """Events of downloading every file of the repository whose path contains `only`."""
    hub = Hub(server.endpoint, read_s=read_s)
    listing = hub.listing(REPO)
    files = [file for file in listing.files if only in file.path]
    yield from download(hub, listing, files, connections=connections, patience=QUICK)


def pull(
    server: LoopbackHub, *, only: str = "", connections: int = 4, read_s: float = TIMEOUT_S
) -> list[DownloadEvent]:
    """All of them at once."""
    return list(fetched(server, only=only, connections=connections, read_s=read_s))


def contents(events: Iterable[DownloadEvent]) -> dict[str, bytes]:
    """What lies in the cache for each file that is done."""
    return {event.path: event.file.read_bytes() for event in events if isinstance(event, FileDone)}
