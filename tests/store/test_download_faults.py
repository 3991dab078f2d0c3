"""Downloads over bad lines and from bad servers: what arrives is right, or nothing does."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrun.errors import LlmrunError, ModelNotFound, NetworkFailure
from llmrun.reports.download import DownloadEvent, FileDone, FileRetried
from llmrun.store.download import download
from llmrun.store.hf_cache import cached_files, partial_files, repo_folder
from llmrun.store.hub import Hub
from llmrun.store.hub_errors import TransientFailure

from tests.support.fetching import contents, fetched, pull, small_pieces
from tests.support.hub import REPO, Faults, LoopbackHub

SIZE = (2 << 20) + 333
CONTENT = random.Random(5).randbytes(SIZE)


@pytest.fixture
def server(server: LoopbackHub) -> LoopbackHub:
    server.add("m.gguf", CONTENT)
    return server


def keep(content: bytes, digest: str, repo: str = REPO) -> Path:
    """Leave a partial file as a killed run does."""
    blobs = repo_folder(repo) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    partial = blobs / f"{digest}.incomplete"
    partial.write_bytes(content)
    return partial


def retries(events: list[DownloadEvent]) -> list[FileRetried]:
    return [event for event in events if isinstance(event, FileRetried)]


def refused(server: LoopbackHub) -> LlmrunError:
    """The error of a download, after which no model is there."""
    with pytest.raises(LlmrunError) as caught:
        pull(server)
    assert cached_files(REPO) == ()
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("rst", [False, True])
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("cut_after", [0, 1, 100_000])
def test_a_line_that_breaks_costs_nothing_twice(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, cut_after: int, connections: int, rst: bool
) -> None:
    small_pieces(monkeypatch)
    server.faults.cut_times, server.faults.cut_after, server.faults.rst = 3, cut_after, rst
    assert contents(pull(server, connections=connections)) == {"m.gguf": CONTENT}
    assert server.faults.cut_times == 0
    assert server.sent() <= SIZE + (3 * cut_after if rst else 0)  # RST discards what was not read yet


def test_another_storage_host_after_a_break_goes_on_where_the_first_was(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    server.redirect = True
    server.faults.cut_times, server.faults.cut_after = 6, 30_000
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert len({request.path for request in server.bodies("storage")}) > 2
    assert server.sent() == SIZE


def fetched_through_ten_cuts(server: LoopbackHub, source: Path, size: int) -> None:
    block = random.Random(3).randbytes(1 << 20)
    with source.open("wb") as handle:
        for number in range(size >> 20):
            handle.write(number.to_bytes(8, "big") + block[8:])
    stored = server.add("big.gguf", source)
    server.faults.cut_times, server.faults.cut_after = 10, 150_000
    (done,) = (e for e in pull(server, only="big.gguf") if isinstance(e, FileDone))
    assert done.verified == "sha256"
    assert done.file.resolve().name == stored.sha256
    assert done.file.read_bytes() == source.read_bytes()
    assert server.faults.cut_times == 0
    assert server.sent("big.gguf") <= size * 1.05


def test_a_file_through_a_server_that_cuts_the_line_ten_times(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    fetched_through_ten_cuts(server, tmp_path / "source", 8 << 20)


@pytest.mark.slow
def test_200_mb_through_a_server_that_cuts_the_line_ten_times(server: LoopbackHub, tmp_path: Path) -> None:
    fetched_through_ten_cuts(server, tmp_path / "source", 200 << 20)


def test_a_line_that_goes_dead_is_given_up_and_taken_up_again(server: LoopbackHub) -> None:
    server.faults.stall_times, server.faults.stall_after = 2, 50_000
    events = pull(server, read_s=0.5)
    assert contents(events) == {"m.gguf": CONTENT}
    assert server.faults.stall_times == 0
    assert all("stopped answering" in event.reason for event in retries(events))
    assert (server.bodies()[-1].first_byte or 0) >= 100_000


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(server: LoopbackHub, status: int) -> None:
    server.faults.statuses = [("/resolve/", status, {})] * 2
    events = pull(server)
    assert contents(events) == {"m.gguf": CONTENT}
    assert not server.faults.statuses
    assert all(str(status) in event.reason for event in retries(events))


def test_a_server_that_asks_to_wait_is_given_the_time(server: LoopbackHub) -> None:
    server.faults.statuses = [("/resolve/", 503, {"Retry-After": "1"})]
    events = pull(server)
    assert contents(events) == {"m.gguf": CONTENT}
    assert [event.wait_s for event in retries(events)] == [1.0]


def test_a_server_that_asks_to_wait_for_an_hour_is_not_waited_for(server: LoopbackHub) -> None:
    partial = keep(CONTENT[:5000], server.repos[REPO]["m.gguf"].sha256)
    server.faults.statuses = [("/resolve/", 429, {"Retry-After": "3600"})]
    error = refused(server)
    assert isinstance(error, TransientFailure)
    assert error.wait_s == 3600
    assert partial.stat().st_size == 5000


def test_tries_without_progress_end(server: LoopbackHub) -> None:
    server.faults.cut_times, server.faults.cut_after = 1000, 0
    assert isinstance(refused(server), TransientFailure)
    assert len(server.bodies()) == 4


def test_tries_with_progress_go_on(server: LoopbackHub) -> None:
    server.faults.cut_times, server.faults.cut_after = 1000, 100_000
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert len(server.bodies()) > 20


def test_what_is_refused_before_the_first_byte_leaves_nothing(server: LoopbackHub) -> None:
    server.gated = {REPO}
    assert isinstance(refused(server), NetworkFailure)
    assert partial_files(REPO) == ()
    assert not list((repo_folder(REPO) / "blobs").iterdir())


def test_a_signed_address_that_expires_is_asked_for_again(server: LoopbackHub) -> None:
    server.redirect, server.faults.expired_times = True, 2
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert len({request.path for request in server.bodies("storage")}) > 2


# -- a later run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 70_000, SIZE - 1, SIZE])
def test_a_later_run_asks_for_the_rest_alone(server: LoopbackHub, kept: int) -> None:
    keep(CONTENT[:kept], server.repos[REPO]["m.gguf"].sha256)
    events = pull(server)
    assert contents(events) == {"m.gguf": CONTENT}
    assert [request.first_byte for request in server.bodies()] == ([kept] if kept < SIZE else [])
    assert server.sent() == SIZE - kept
    assert partial_files(REPO) == ()


def test_a_server_without_ranges_sends_all_of_it_again(server: LoopbackHub) -> None:
    keep(CONTENT[:70_000], server.repos[REPO]["m.gguf"].sha256)
    server.faults.no_range = True
    events = pull(server)
    assert contents(events) == {"m.gguf": CONTENT}
    assert [event.done_bytes for event in retries(events)] == [0]
    assert [request.first_byte for request in server.bodies()] == [70_000, 0]


def test_a_server_without_ranges_is_read_in_one_go(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    server.faults.no_range = True
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert len(server.bodies()) == 1


def test_a_server_without_ranges_and_with_a_bad_line_is_given_up(server: LoopbackHub) -> None:
    server.faults.no_range, server.faults.cut_times, server.faults.cut_after = True, 1000, 100_000
    assert isinstance(refused(server), NetworkFailure)
    assert len(server.bodies()) <= 10


def test_a_kept_part_that_is_wrong_costs_one_fresh_start(server: LoopbackHub) -> None:
    keep(b"garbage" * 10_000, server.repos[REPO]["m.gguf"].sha256)
    events = pull(server)
    assert contents(events) == {"m.gguf": CONTENT}
    assert [event.done_bytes for event in retries(events)] == [0]


def test_a_kept_part_that_is_too_long_is_not_kept(server: LoopbackHub) -> None:
    keep(CONTENT + b"more", server.repos[REPO]["m.gguf"].sha256)
    assert contents(pull(server)) == {"m.gguf": CONTENT}


def test_a_link_in_place_of_the_partial_file_is_not_followed(server: LoopbackHub, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    blobs = repo_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{server.repos[REPO]['m.gguf'].sha256}.incomplete").symlink_to(mine)
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert mine.read_bytes() == b"precious"


def test_a_blob_of_the_wrong_length_is_replaced(server: LoopbackHub) -> None:
    blobs = repo_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / server.repos[REPO]["m.gguf"].sha256).write_bytes(CONTENT[:1000])
    assert contents(pull(server)) == {"m.gguf": CONTENT}


# -- content that is not what it should be -------------------------------------------------------------------


def test_a_file_that_changed_between_two_runs_is_fetched_anew(server: LoopbackHub) -> None:
    old = keep(CONTENT[:70_000], server.repos[REPO]["m.gguf"].sha256)
    old.with_name(old.name + ".json").write_text(f'{{"path": "m.gguf", "size_bytes": {SIZE}}}')
    newer = CONTENT[::-1]
    server.add("m.gguf", newer)
    assert contents(pull(server)) == {"m.gguf": newer}
    assert server.bodies()[0].first_byte == 0
    assert partial_files(REPO) == ()
    assert not list(old.parent.glob("*.json"))


@pytest.mark.parametrize(("connections", "cuts"), [(1, 2), (4, 2), (4, 0)])
def test_a_file_that_changes_midway_is_fetched_anew(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, connections: int, cuts: int
) -> None:
    small_pieces(monkeypatch)
    newer = CONTENT[::-1]
    server.faults.cut_times, server.faults.cut_after = cuts, 30_000
    server.faults.swap = {"m.gguf": (2, newer)}
    events = pull(server, connections=connections)
    assert not server.faults.swap
    assert contents(events)["m.gguf"] == newer
    assert cached_files(REPO)[0].commit == server.commit()
    assert retries(events)
    assert not any("digest" in event.reason for event in retries(events))


def test_a_file_that_disappears_midway_is_not_found(server: LoopbackHub) -> None:
    going = fetched(server)
    next(going)
    del server.repos[REPO]["m.gguf"]
    server.add("other.gguf", b"other")
    with pytest.raises(ModelNotFound, match=r"m\.gguf"):
        list(going)


@pytest.mark.parametrize("announce", [-1000, 1000])
@pytest.mark.parametrize("no_range", [False, True])
def test_a_wrong_length_is_refused(server: LoopbackHub, announce: int, no_range: bool) -> None:
    server.faults.announce, server.faults.no_range = announce, no_range
    error = refused(server)
    assert isinstance(error, NetworkFailure)
    assert f"{SIZE + announce:,}" in error.message
    assert f"{SIZE:,}" in error.message
    assert len(server.bodies()) == 2  # one clean retry: waiting mends no length
    assert all(partial.size_bytes <= SIZE for partial in partial_files(REPO))


def test_a_listing_that_is_older_than_the_file_is_asked_for_again(server: LoopbackHub) -> None:
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    old = replace(listing.files[0], size_bytes=SIZE - 5)
    events = list(download(hub, replace(listing, files=(old,)), [old]))
    assert contents(events) == {"m.gguf": CONTENT}
    assert len(retries(events)) == 1


def test_one_wrong_byte_costs_one_clean_retry(server: LoopbackHub) -> None:
    server.faults.flip_times = 1
    events = []
    for event in fetched(server):
        events.append(event)
        if isinstance(event, FileRetried):
            assert [partial.size_bytes for partial in partial_files(REPO)] == [event.done_bytes] == [0]
    assert contents(events) == {"m.gguf": CONTENT}
    assert len(retries(events)) == 1


def test_two_wrong_contents_are_refused_with_both_digests(server: LoopbackHub) -> None:
    server.faults.flip_times = 2
    error = refused(server)
    assert isinstance(error, NetworkFailure)
    assert server.repos[REPO]["m.gguf"].sha256 in error.message
    assert error.message.count("digest") == 1
    assert partial_files(REPO) == ()
    assert server.faults.flip_times == 0
    assert contents(pull(server)) == {"m.gguf": CONTENT}


def test_a_login_page_in_between_does_not_spoil_what_is_kept(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = keep(CONTENT[:70_000], server.repos[REPO]["m.gguf"].sha256)
    page = b"<html>please log in</html>"
    monkeypatch.setattr("tests.support.hub.TROUBLE", page)
    server.faults.statuses = [("/resolve/", 200, {})] * 99
    assert isinstance(refused(server), NetworkFailure)
    assert partial.read_bytes() == CONTENT[:70_000]
    server.faults.statuses = []
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert server.bodies()[-1].first_byte == 70_000


# -- any line -----------------------------------------------------------------------------------------------

LINES = st.builds(
    Faults,
    cut_after=st.sampled_from([0, 1, 4096, 70_000, 300_000]),
    cut_times=st.integers(0, 4),
    no_range=st.sampled_from([False, False, False, True]),
    flip_times=st.integers(0, 2),
    announce=st.sampled_from([0, 0, 0, 0, 1, -1]),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(LINES, st.integers(0, 6), st.sampled_from([1, 3])), min_size=1, max_size=4))
def test_whatever_the_line_does_the_file_is_right_or_not_there(
    server: LoopbackHub,
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[Faults, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("any")))
        for faults, stop_after, connections in runs:
            server.faults = faults
            going = fetched(server, connections=connections)
            with suppress(NetworkFailure):
                for _ in range(stop_after):
                    next(going, None)
            going.close()
            assert all(partial.size_bytes <= SIZE for partial in partial_files(REPO))
            assert all(found.file.read_bytes() == CONTENT for found in cached_files(REPO))
        server.faults = Faults()
        assert contents(pull(server)) == {"m.gguf": CONTENT}
