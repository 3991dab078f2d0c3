"""Downloads that go well: what arrives, where it lies, and what is not fetched again."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from llmrun.errors import NetworkFailure, WriteFailure
from llmrun.reports.download import Downloaded, FileDone, FileProgress, FileStarted, HubAwaited
from llmrun.store import fetch
from llmrun.store.download import RESERVE_BYTES, download
from llmrun.store.fetch import Fetch, Patience
from llmrun.store.hf_cache import cached_files, current_commit, hub_cache_dir, partial_files, repo_folder
from llmrun.store.hub import Hub
from llmrun.store.partial import DiskFull
from llmrun.store.repo_files import RepoFile
from llmrun.units import format_bytes

from tests.support.fetching import contents, fetched, pull, small_pieces
from tests.support.hub import REPO, TOKEN, LoopbackHub, Stored
from tests.support.waiting import TIMEOUT_S


@pytest.mark.parametrize("redirect", [False, True])
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("size", [0, 1, 70_000, (3 << 20) + 17])
def test_every_byte_arrives_and_the_layout_is_the_hubs(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, size: int, connections: int, redirect: bool
) -> None:
    small_pieces(monkeypatch)
    content = random.Random(size).randbytes(size)
    stored = server.add("q/m-Q4_K_M.gguf", content)
    server.redirect = redirect
    *_, last = pull(server, connections=connections)
    assert isinstance(last, Downloaded)
    (place,) = last.files
    folder = repo_folder(REPO)
    assert place == folder / "snapshots" / server.commit() / "q" / "m-Q4_K_M.gguf"
    assert place.read_bytes() == content
    assert os.readlink(place) == f"../../../blobs/{stored.sha256}"
    assert current_commit(REPO) == server.commit()
    assert (folder / "refs" / "main").read_text() == server.commit()
    assert (last.size_bytes, last.received_bytes) == (size, size)
    assert {path.name for path in (folder / "blobs").iterdir()} == {stored.sha256}


def test_large_files_come_over_several_connections_in_order(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    content = random.Random(1).randbytes(4 << 20)
    server.add("m.gguf", content)
    partial = repo_folder(REPO) / "blobs" / f"{server.repos[REPO]['m.gguf'].sha256}.incomplete"
    for event in fetched(server, connections=4):
        if isinstance(event, FileProgress) and partial.exists():
            kept = partial.read_bytes()
            assert len(kept) >= event.done_bytes
            assert kept == content[: len(kept)]
    starts = [request.first_byte or 0 for request in server.bodies()]
    assert len(starts) > 4
    assert len(set(starts)) == len(starts)
    assert server.sent() == len(content)


@pytest.mark.parametrize("no_range", [False, True])
def test_what_is_fetched_ahead_is_bounded(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, no_range: bool
) -> None:
    small_pieces(monkeypatch)
    server.faults.no_range = no_range
    server.add("m.gguf", bytes(16 << 20))
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    with Fetch(hub, listing, listing.files[0], 0, 4, Patience()) as going:
        blocks = going.blocks()
        next(blocks)
        before = -1
        while before != going.received_bytes:
            before = going.received_bytes
            time.sleep(0.1)
        assert before <= 6 * fetch._PIECE_MAX
        assert sum(len(block) for block in blocks if isinstance(block, bytes)) > 0


def test_a_twentieth_of_a_file_at_most_is_ahead_of_what_is_written(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a killed download loses, on its way too: one piece does not come, and the rest waits for it."""
    monkeypatch.setattr(fetch, "_SILENT_S", 0.3)
    size, source = 64 << 20, tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(size)
    server.add("m.gguf", source)
    server.faults.stall_after = 400 << 10
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    with Fetch(hub, listing, listing.files[0], 0, 4, Patience()) as going:
        written = 0
        for block in going.blocks():
            if isinstance(block, bytes):
                if written < size // 4 <= written + len(block):  # pieces have grown to their longest
                    server.faults.stall_times = 1
                written += len(block)
            elif written >= size // 4 and server.faults.stall_times == 0:
                break
    assert size // 4 <= written < size
    assert server.sent() - written <= size // 20


def test_silence_is_told_while_it_lasts(server: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_SILENT_S", 0.05)
    monkeypatch.setattr(fetch, "_LOOK_EVERY_S", 0.05)
    server.add("m.gguf", b"m" * 1000)
    server.redirect, server.faults.hold = True, threading.Event()
    events = []
    for event in fetched(server, read_s=TIMEOUT_S):
        events.append(event)
        if isinstance(event, HubAwaited) and server.storage.endswith(event.host):
            assert event.waited_s >= 0.05
            server.faults.hold.set()
    assert server.faults.hold.is_set()
    assert contents(events) == {"m.gguf": b"m" * 1000}


def test_events_tell_each_file_and_add_up(server: LoopbackHub) -> None:
    for number in range(1, 4):
        server.add(f"Q4/m-0000{number}-of-00003.gguf", bytes([number]) * 1000 * number)
    server.add("m-Q8_0.gguf", b"not asked for")
    events = list(fetched(server, only="Q4/"))
    started = [e for e in events if isinstance(e, FileStarted)]
    done = [e for e in events if isinstance(e, FileDone)]
    assert [(e.index, e.count, e.size_bytes) for e in started] == [(1, 3, 1000), (2, 3, 2000), (3, 3, 3000)]
    assert [(e.path, e.received_bytes, e.verified) for e in done] == [
        (e.path, e.size_bytes, "sha256") for e in started
    ]
    progress = [e for e in events if isinstance(e, FileProgress)]
    assert progress[-1].all_done_bytes == progress[-1].all_size_bytes == 6000
    assert [f.path for f in cached_files(REPO)] == [e.path for e in started]


def test_what_is_there_is_not_fetched_again(server: LoopbackHub) -> None:
    server.add("a.gguf", b"a" * 5000)
    server.add("b.json", b"{}", large=False)
    assert contents(pull(server)) == {"a.gguf": b"a" * 5000, "b.json": b"{}"}
    asked = len(server.bodies())
    again = pull(server)
    assert [e.received_bytes for e in again if isinstance(e, FileDone)] == [0, 0]
    server.add("c.gguf", b"a" * 5000)  # the same content in a new commit
    assert set(contents(pull(server))) == {"a.gguf", "b.json", "c.gguf"}
    assert len(server.bodies()) == asked
    assert len({f.commit for f in cached_files(REPO)}) == 2


def test_small_files_are_verified_by_their_git_id(server: LoopbackHub) -> None:
    stored = server.add("config.json", b'{"a": 1}', large=False)
    (done,) = (e for e in pull(server) if isinstance(e, FileDone))
    assert done.verified == "git"
    assert cached_files(REPO)[0].blob.name == stored.oid


@pytest.mark.parametrize("large", [False, True])
def test_a_file_without_a_listed_digest_is_named_by_its_address(server: LoopbackHub, large: bool) -> None:
    stored = server.add("x.gguf", b"x" * 100, large=large)
    hub = Hub(server.endpoint)
    list(download(hub, hub.listing(REPO), [RepoFile("x.gguf", 100)]))
    assert cached_files(REPO)[0].blob.name == stored.etag


@pytest.mark.parametrize(
    "path", ["My Модель (v2) 模型.Q4_1.gguf", "-dash.gguf", "name:v2.gguf", "a b/c#d?e%20f.gguf"]
)
def test_unusual_names_of_files_and_folders(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "Моя папка (2)" / "-hub:x"))
    server.add(path, b"content")
    assert contents(pull(server)) == {path: b"content"}
    assert [f.path for f in cached_files(REPO)] == [path]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../../x", "a\\..\\x", "C:x", "a/\0b"])
def test_no_name_leaves_the_cache(server: LoopbackHub, tmp_path: Path, path: str) -> None:
    server.add("ok.gguf", b"ok")
    server.repos[REPO][path] = Stored(b"evil")
    hub = Hub(server.endpoint)
    with pytest.raises(NetworkFailure):
        list(download(hub, hub.listing(REPO), [RepoFile(path, 4, "a" * 64)]))
    assert list(tmp_path.rglob("*")) == []


def test_a_revision_by_name_gets_its_own_reference(server: LoopbackHub) -> None:
    server.add("x.gguf", b"x")
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO, server.commit())
    list(download(hub, listing, listing.files))
    assert not (repo_folder(REPO) / "refs").exists()
    assert [f.current for f in cached_files(REPO)] == [False]


def test_the_token_stays_with_the_hub(server: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.gated, server.redirect = {REPO}, True
    server.add("m.gguf", bytes(2 << 20))
    pull(server)
    elsewhere = [r for r in server.log if r.host == server.storage.removeprefix("http://")]
    assert len(elsewhere) > 1
    assert not any("authorization" in r.headers for r in elsewhere)
    assert len(server.log) > len(elsewhere)


# -- the disk -----------------------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("m.gguf", b"m" * 1000)
    server.extra_siblings = [
        {"rfilename": "huge.gguf", "size": 5 << 40, "lfs": {"sha256": "5" * 64, "size": 5 << 40}}
    ]
    with pytest.raises(DiskFull) as caught:
        pull(server)
    assert caught.value.exit_code == 10
    assert format_bytes((5 << 40) + 1000) in caught.value.message
    assert format_bytes(RESERVE_BYTES) in caught.value.message
    assert not server.bodies()
    assert not hub_cache_dir().exists()
    for free, fits in ((RESERVE_BYTES + 999, False), (RESERVE_BYTES + 1000, True)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: _Usage(free))
        if fits:
            pull(server, only="m.gguf")
        else:
            with pytest.raises(DiskFull, match="1000 B"):
                pull(server, only="m.gguf")


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_what_is_kept_counts_as_there(server: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = server.add("m.gguf", b"m" * 1000)
    blobs = repo_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{stored.sha256}.incomplete").write_bytes(b"m" * 400)
    monkeypatch.setattr("shutil.disk_usage", lambda _: _Usage(RESERVE_BYTES + 600))
    assert contents(pull(server)) == {"m.gguf": b"m" * 1000}
    assert server.bodies()[0].first_byte == 400


def test_a_disk_that_fills_up_midway_loses_the_partial_file(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("m.gguf", b"m" * 200_000)
    write = os.pwrite

    def full(fd: int, data: memoryview, at: int) -> int:
        if at + len(data) > 100_000:
            raise OSError(28, "No space left on device")
        return write(fd, data, at)

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DiskFull, match="is full") as caught:
        pull(server)
    assert str(repo_folder(REPO) / "blobs") in caught.value.message
    assert not cached_files(REPO)
    assert not partial_files(REPO)
    assert not list((repo_folder(REPO) / "blobs").iterdir())


def test_a_folder_that_cannot_be_written_is_named(server: LoopbackHub, tmp_path: Path) -> None:
    server.add("m.gguf", b"m")
    (tmp_path / "hub").write_text("a file is in the way")
    with pytest.raises(WriteFailure, match="hub") as caught:
        pull(server)
    assert not isinstance(caught.value, DiskFull)
    assert not server.bodies()
