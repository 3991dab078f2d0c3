"""Checks of what lies in the cache."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from llmrun.errors import ModelNotFound
from llmrun.reports.download import FileChecked, FileDone, FileWaiting
from llmrun.store import verify
from llmrun.store.download import download
from llmrun.store.hf_cache import CachedFile, cached_files, hub_cache_dir, repo_folder
from llmrun.store.hub import Hub
from llmrun.store.repo_files import RepoFile
from llmrun.store.verify import Check, named_digest

from tests.support.fetching import pull
from tests.support.hub import REPO, LoopbackHub

CONTENT = bytes(range(256)) * 400


def check(file: Path, digest: str) -> Check:
    cached = CachedFile(REPO, "m.gguf", "c" * 40, True, file, file, len(CONTENT), 0.0)
    return Check(cached, RepoFile("m.gguf", len(CONTENT), sha256=digest))


def test_every_content_is_named_by_its_digest(server: LoopbackHub) -> None:
    server.add("m.gguf", CONTENT)
    server.add("small.json", b"{}", large=False)
    pull(server)
    for file in cached_files(REPO):
        listed = named_digest(file)
        assert listed is not None
        assert listed.blob_name == server.repos[REPO][file.path].etag
        going = Check(file, listed)
        assert list(going.run()) == []
        assert going.damage == ""


@pytest.mark.parametrize("links", [True, False])
def test_what_another_process_mends_meanwhile_is_not_fetched_again(server: LoopbackHub, links: bool) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    stored = server.add("m.gguf", CONTENT)
    pull(server)
    (cached,) = cached_files(REPO)
    place = cached.blob if links else cached.file
    if not links:
        cached.file.unlink()
        cached.blob.unlink()
    place.write_bytes(CONTENT[:-1] + b"?")
    going = Check(cached, RepoFile("m.gguf", len(CONTENT), sha256=stored.sha256))
    list(going.run())
    assert going.damage
    server.log.clear()
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    events = download(hub, listing, listing.files, damaged={"m.gguf": going.stamp})
    lock = hub_cache_dir() / ".locks" / repo_folder(REPO).name / f"{stored.sha256}.lock"
    with WeakFileLock(lock):
        assert any(isinstance(event, FileWaiting) for event in events)
        (place.parent / "new").write_bytes(CONTENT)
        os.replace(place.parent / "new", place)
    (done,) = [event for event in events if isinstance(event, FileDone)]
    assert done.file.read_bytes() == CONTENT
    assert server.bodies() == []


@pytest.mark.parametrize("name", ["m.gguf", "A" * 64, "a" * 63, "g" * 40])
def test_a_name_that_is_no_digest_tells_none(tmp_path: Path, name: str) -> None:
    file = tmp_path / "blobs" / name
    assert named_digest(CachedFile(REPO, "m.gguf", "c" * 40, True, file, file, 1, 0.0)) is None


def test_steps_are_told_up_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_READ_BYTES", 10_000)
    monkeypatch.setattr(verify, "_EVENT_EVERY_S", 0.0)
    file = tmp_path / "m.gguf"
    file.write_bytes(CONTENT)
    going = check(file, hashlib.sha256(CONTENT).hexdigest())
    steps = list(going.run())
    assert all(isinstance(step, FileChecked) for step in steps)
    assert [step.done_bytes for step in steps] == sorted({step.done_bytes for step in steps})
    assert steps[-1].done_bytes == steps[-1].kept_bytes == len(CONTENT)
    assert going.damage == ""


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that the system cannot read")
def test_what_the_disk_cannot_read_is_damaged() -> None:
    going = check(Path("/proc/self/mem"), "a" * 64)
    list(going.run())
    assert "disk" in going.damage


def test_what_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        list(check(tmp_path, "a" * 64).run())
