"""Headers of files on the Hub: what moves, what is kept, what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrun.errors import LlmrunError, NetworkFailure, NotAModel
from llmrun.gguf.reader import read_header
from llmrun.store import remote_header
from llmrun.store.hub import Hub
from llmrun.store.remote_header import FIRST_BYTES, FIRST_OF_PART_BYTES, FOLDER, Headers, fetch_headers

from tests.support.archs import write_split
from tests.support.gguf_writer import Tensor, Value, write_gguf
from tests.support.hub import REPO, LoopbackHub
from tests.support.models import gemma_path, smollm2_path
from tests.support.waiting import TIMEOUT_S


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "_BACKOFF_S", 0.01)


def headers(server: LoopbackHub, cache: Path, only: str = "") -> Headers:
    hub = Hub(server.endpoint, read_s=TIMEOUT_S)
    listing = hub.listing(REPO)
    return fetch_headers(hub, listing, [f for f in listing.files if only in f.path], cache)


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """A model whose header is much longer than the first piece."""
    keys: list[tuple[str, Value]] = [
        ("general.architecture", "llama"),
        ("tokenizer.ggml.tokens", [f"token {no} {'x' * (no % 40)}" for no in range(20_000)]),
        ("tokenizer.ggml.scores", [0.5] * 20_000),
        ("tokenizer.ggml.merges", [f"{no} {no}" for no in range(20_000)]),
    ]
    return write_gguf(tmp_path / "large.gguf", keys, [Tensor("t", (1 << 20,), bytes(4 << 20))])


@pytest.mark.parametrize("model", [smollm2_path, gemma_path])
@pytest.mark.parametrize("redirect", [False, True])
def test_a_real_header_costs_itself_and_a_tenth(
    server: LoopbackHub, tmp_path: Path, model: Callable[[], Path], redirect: bool
) -> None:
    path = model()
    server.redirect = redirect
    server.add("m.gguf", path)
    found = headers(server, tmp_path)
    whole = read_header(path)
    assert whole.data_offset <= found.received_bytes <= 1.1 * whole.data_offset
    assert server.sent() <= 1.1 * whole.data_offset
    assert len(server.bodies()) <= 8
    assert sum(request.method == "HEAD" for request in server.log) <= 2
    (copy,) = found.files
    assert copy.name == "m.gguf"
    assert copy.stat().st_size == path.stat().st_size
    assert copy.stat().st_blocks * 512 < 1.2 * whole.data_offset + (64 << 10)
    with copy.open("rb") as ours, path.open("rb") as theirs:
        assert ours.read(whole.data_offset) == theirs.read(whole.data_offset)


def test_what_was_read_once_is_not_asked_for_again(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary)
    first, bodies = headers(server, tmp_path), len(server.bodies())
    again = headers(server, tmp_path)
    assert (again.files, again.received_bytes) == (first.files, 0)
    assert len(server.bodies()) == bodies


def test_a_file_under_another_name_is_the_same_content(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("a.gguf", vocabulary)
    server.add("b.gguf", vocabulary)
    assert headers(server, tmp_path, "a.").received_bytes > 0
    for name in ("b.gguf", "a.gguf"):
        found = headers(server, tmp_path, name)
        assert (found.files[0].name, found.received_bytes) == (name, 0)
        whole = read_header(vocabulary)
        assert (
            found.files[0].read_bytes()[: whole.data_offset] == vocabulary.read_bytes()[: whole.data_offset]
        )


def test_a_file_without_digest_is_known_by_its_place(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary, large=False)
    assert headers(server, tmp_path).received_bytes > 0
    assert headers(server, tmp_path).received_bytes == 0
    server.add("other.txt", b"a new commit")
    assert headers(server, tmp_path, ".gguf").received_bytes > 0


@pytest.mark.parametrize("damage", ["byte", "length", "gone"])
def test_a_damaged_copy_is_fetched_anew(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path, damage: str
) -> None:
    server.add("m.gguf", vocabulary)
    (copy,) = headers(server, tmp_path).files
    whole = hashlib.sha256(copy.read_bytes()).hexdigest()
    with copy.open("r+b") as file:
        if damage == "byte":
            file.seek(300_000)
            file.write(b"\xff")
        elif damage == "length":
            file.truncate(1000)
        else:
            copy.unlink()
    again = headers(server, tmp_path)
    assert again.received_bytes > 0
    assert hashlib.sha256(again.files[0].read_bytes()).hexdigest() == whole


def test_all_parts_of_a_set_are_read(server: LoopbackHub, tmp_path: Path) -> None:
    parts = write_split(tmp_path, "llama", 3)
    for part in parts:
        server.add(f"Q8_0/{part.name}", part)
    found = headers(server, tmp_path)
    assert found.received_bytes <= FIRST_BYTES + 2 * FIRST_OF_PART_BYTES
    assert [copy.name for copy in found.files] == [part.name for part in parts]
    wanted = [[t.name for t in read_header(part).tensors] for part in parts]
    assert [[t.name for t in read_header(copy).tensors] for copy in found.files] == wanted


def test_a_server_that_ignores_ranges_is_read_from_its_start_once(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary)
    server.faults.no_range = True
    found = headers(server, tmp_path)
    assert read_header(found.files[0]).data_offset == read_header(vocabulary).data_offset
    assert len(server.bodies()) == 1
    assert found.received_bytes < vocabulary.stat().st_size / 2


def test_a_broken_line_is_mended(server: LoopbackHub, tmp_path: Path, vocabulary: Path) -> None:
    server.add("m.gguf", vocabulary)
    server.faults.cut_after, server.faults.cut_times = 50_000, 2
    found = headers(server, tmp_path)
    data_offset = read_header(vocabulary).data_offset
    assert read_header(found.files[0]).data_offset == data_offset
    assert server.sent() <= 1.1 * data_offset


def test_a_hub_in_trouble_is_asked_again_and_then_given_up(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary)
    server.faults.statuses = [("resolve", 503, {})] * 2
    assert headers(server, tmp_path).received_bytes > 0
    server.add("m.gguf", vocabulary.read_bytes() + b"more")
    server.faults.statuses = [("resolve", 503, {})] * 20
    with pytest.raises(NetworkFailure, match="503"):
        headers(server, tmp_path)


def test_a_silent_host_is_given_up_at_once_and_a_slow_one_is_not(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary)
    listing = Hub(server.endpoint).listing(REPO)
    server.faults.stall_after, server.faults.stall_times = 0, 99
    with pytest.raises(NetworkFailure, match="stopped answering"):
        fetch_headers(Hub(server.endpoint, read_s=0.5), listing, listing.files, tmp_path)
    assert len(server.bodies()) <= 1
    server.faults.stall_after, server.faults.stall_times = 40_000, 1
    patient = Hub(server.endpoint, read_s=3.0)
    assert fetch_headers(patient, listing, listing.files, tmp_path).received_bytes > 0
    assert server.faults.stall_times == 0


def test_another_content_than_listed_is_refused(
    server: LoopbackHub, tmp_path: Path, vocabulary: Path
) -> None:
    server.add("m.gguf", vocabulary)
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    server.add("m.gguf", vocabulary.read_bytes()[:-4] + b"else")
    with pytest.raises(LlmrunError):
        fetch_headers(hub, listing, listing.files, tmp_path)


def test_what_is_no_model_is_named(server: LoopbackHub, tmp_path: Path) -> None:
    server.add("m.gguf", b"<!doctype html><title>Sign in</title>" + bytes(1 << 20))
    with pytest.raises(NotAModel, match="web page"):
        headers(server, tmp_path)
    assert server.sent() <= FIRST_BYTES
    assert not list((tmp_path / FOLDER).glob("*"))


def test_the_oldest_copies_go(server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_header, "_MOST_ENTRIES", 3)
    for no in range(5):
        content = write_gguf(
            tmp_path / "m",
            [("general.architecture", "llama"), ("general.name", str(no))],
            [Tensor("t", (32,), bytes(128))],
        ).read_bytes()
        server.add(f"{no}.gguf", content)
        headers(server, tmp_path, f"{no}.gguf")
    assert len(list((tmp_path / FOLDER).glob("*"))) == 3
    assert headers(server, tmp_path, "4.gguf").received_bytes == 0
    assert headers(server, tmp_path, "0.gguf").received_bytes > 0
