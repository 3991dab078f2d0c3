"""Questions to the Hub: listings, addresses, ranges, and every refusal in its own words."""

from __future__ import annotations

import inspect
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx2
import huggingface_hub.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import LlmrunError, ModelNotFound, NetworkFailure, UsageError
from llmrun.store.hf_cache import safe_parts
from llmrun.store.hub import Hub
from llmrun.store.hub_errors import Asked, TransientFailure, retry_after_s, told_plainly
from llmrun.store.listing import Listing, parse_listing
from llmrun.store.repo_files import RepoFile

from tests.support.hub import REPO, TOKEN, LoopbackHub
from tests.support.waiting import TIMEOUT_S

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def server(server: LoopbackHub) -> LoopbackHub:
    server.add("tiny-Q4_K_M.gguf", CONTENT)
    server.add("README.md", b"# tiny", large=False)
    return server


def asking(server: LoopbackHub) -> Hub:
    return Hub(server.endpoint, connect_s=TIMEOUT_S, read_s=TIMEOUT_S)


def received(hub: Hub, listing: Listing, start: int, stop: int) -> bytes:
    """Bytes of the model file, all that the server sends."""
    (file,) = (f for f in listing.files if f.path.endswith(".gguf"))
    with hub.open(hub.locate(listing, file), start, stop) as body:
        return b"".join(body.chunks)


def test_a_listing_names_every_file_with_its_size_and_digest(server: LoopbackHub) -> None:
    stored = server.repos[REPO]
    listing = asking(server).listing(REPO)
    assert listing.repo == REPO
    assert listing.commit == server.commit()
    assert {f.path: f.size_bytes for f in listing.files} == {p: s.size for p, s in stored.items()}
    digests = {f.path: f.blob_name for f in listing.files}
    assert digests == {p: s.etag for p, s in stored.items()}
    assert [len(f.sha256) for f in sorted(listing.files, key=lambda f: f.path)] == [0, 64]
    assert len(server.log) == 1


def test_another_letter_case_leads_to_the_name_as_the_hub_spells_it(server: LoopbackHub) -> None:
    assert asking(server).listing(REPO.upper()).repo == REPO


@pytest.mark.parametrize(
    "path", ["../x.gguf", "/x.gguf", "a/../../x", "a//b", "a\\b", "C:x", "a\0b", "a\x1bb", ""]
)
def test_names_that_could_leave_the_cache_are_not_listed(server: LoopbackHub, path: str) -> None:
    server.extra_siblings = [{"rfilename": path, "size": 1}, {"rfilename": "ok/x.gguf", "size": 1}]
    paths = {file.path for file in asking(server).listing(REPO).files}
    assert "ok/x.gguf" in paths
    assert path not in paths


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"rfilename": 7, "size": 1},
        {"rfilename": "x"},
        {"rfilename": "x", "size": -1},
        {"rfilename": "x", "size": True},
        {"rfilename": "x", "size": 1, "lfs": {"size": "big"}},
    ],
)
def test_entries_that_make_no_sense_are_not_listed(server: LoopbackHub, entry: object) -> None:
    server.extra_siblings = [entry]
    assert len(asking(server).listing(REPO).files) == len(server.repos[REPO])


def test_a_digest_that_is_none_never_becomes_a_file_name(server: LoopbackHub) -> None:
    server.extra_siblings = [
        {"rfilename": "x", "size": 1, "blobId": "../../../evil", "lfs": {"sha256": "..", "size": 1}}
    ]
    (file,) = (f for f in asking(server).listing(REPO).files if f.path == "x")
    assert file.blob_name == ""


@pytest.mark.parametrize("repo", ["x", "../x", "a/b/c", "a/..", "-a/b", "a/b--c", "a/b c", "a/b\n"])
def test_a_name_that_is_no_repository_is_refused_before_anything_is_asked(
    server: LoopbackHub, repo: str
) -> None:
    with pytest.raises(UsageError):
        asking(server).listing(repo)
    assert not server.log


@pytest.mark.parametrize("redirect", [False, True])
def test_a_range_costs_its_own_bytes(server: LoopbackHub, redirect: bool) -> None:
    server.redirect = redirect
    hub = asking(server)
    listing = hub.listing(REPO)
    assert received(hub, listing, 100, 300) == CONTENT[100:300]
    assert server.sent() == 200
    assert received(hub, listing, len(CONTENT) - 5, len(CONTENT) + 99) == CONTENT[-5:]


def test_an_answer_tells_where_it_begins_and_how_long_the_file_is(server: LoopbackHub) -> None:
    hub = asking(server)
    listing = hub.listing(REPO)
    (file,) = (f for f in listing.files if f.path.endswith(".gguf"))
    for server.faults.no_range in (False, True):
        with hub.open(hub.locate(listing, file), 100, 300) as body:
            begins = 0 if server.faults.no_range else 100
            assert (body.start, body.whole) == (begins, server.faults.no_range)
            assert (body.size_bytes, body.etag) == (len(CONTENT), file.sha256)
            assert b"".join(body.chunks) == CONTENT[begins : 300 if begins else None]


def test_a_hub_in_passing_trouble_is_asked_again(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrun.store.hub._WAITS_S", (0.0, 0.0))
    hub = asking(server)
    server.faults.statuses = [("/api/", 502, {}), ("/api/", 503, {"Retry-After": "0"})]
    assert hub.listing(REPO).files
    server.faults.statuses = [("/api/", 502, {})] * 9
    with pytest.raises(TransientFailure, match="502"):
        hub.listing(REPO)
    assert len(server.faults.statuses) == 6


def test_the_address_carries_digest_and_size(server: LoopbackHub) -> None:
    hub = asking(server)
    listing = hub.listing(REPO)
    for server.redirect in (False, True):
        for file in listing.files:
            source = hub.locate(listing, file)
            assert (source.etag, source.size_bytes) == (file.blob_name, file.size_bytes)
            assert source.url.startswith(server.storage if server.redirect else server.endpoint)


def test_the_token_goes_to_the_hub_alone(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    server.redirect = True
    hub = asking(server)
    received(hub, hub.listing(REPO), 0, 4)
    here, there = (
        [r for r in server.log if r.host == origin.removeprefix("http://")]
        for origin in (server.endpoint, server.storage)
    )
    assert here
    assert all(r.headers["authorization"] == f"Bearer {TOKEN}" for r in here)
    assert there
    assert not any("authorization" in r.headers for r in there)
    assert TOKEN not in caplog.text


def test_the_stored_login_is_used(server: LoopbackHub, tmp_path: Path) -> None:
    server.private.add(REPO)
    (tmp_path / "token").write_text(TOKEN)
    assert asking(server).listing(REPO).files


def test_endpoint_and_offline_come_from_the_environment(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint + "/")
    assert Hub().listing(REPO).files
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkFailure, match="HF_HUB_OFFLINE"):
        Hub().listing(REPO)
    assert len(server.log) == 1


# -- refusals -----------------------------------------------------------------------------------------------


def refused(server: LoopbackHub, repo: str = REPO, revision: str = "main") -> LlmrunError:
    hub = asking(server)

    def ask() -> None:
        received(hub, hub.listing(repo, revision), 0, 4)

    with pytest.raises(LlmrunError) as caught:
        ask()
    assert caught.value.hint
    assert TOKEN not in caught.value.message + caught.value.hint
    return caught.value


def test_gated_private_absent_and_a_bad_token_are_told_apart(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("x.gguf", CONTENT, repo="maker/gated")
    server.add("x.gguf", CONTENT, repo="maker/private")
    server.gated, server.private = {"maker/gated"}, {"maker/private"}
    gated, private, absent = (refused(server, f"maker/{name}") for name in ("gated", "private", "absent"))
    assert isinstance(gated, NetworkFailure)
    assert f"{server.endpoint}/maker/gated" in gated.hint
    assert isinstance(private, ModelNotFound)
    assert private.message.replace("private", "absent") == absent.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.let_in = False
    shut_out, unseen = refused(server, "maker/gated"), refused(server, "maker/absent")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    bad = refused(server)
    assert isinstance(bad, NetworkFailure)
    assert "hf_wrong" not in bad.message + bad.hint
    assert len({e.message for e in (gated, private, absent, shut_out, unseen, bad)}) == 6
    assert all("HF_TOKEN" in e.message for e in (shut_out, unseen, bad))


def test_an_unknown_revision_and_an_unknown_file_are_not_found(server: LoopbackHub) -> None:
    assert isinstance(refused(server, revision="v9"), ModelNotFound)
    hub = asking(server)
    with pytest.raises(ModelNotFound, match=r"no\.gguf"):
        hub.locate(hub.listing(REPO), RepoFile("no.gguf", 1))


def test_a_name_that_leaves_the_cache_is_never_asked_for(server: LoopbackHub) -> None:
    hub = asking(server)
    listing = hub.listing(REPO)
    with pytest.raises(NetworkFailure):
        hub.locate(listing, RepoFile("../../x", 1))


@pytest.mark.parametrize(
    ("status", "kind"), [(429, TransientFailure), (503, TransientFailure), (403, NetworkFailure)]
)
def test_trouble_names_its_status_and_when_to_try_again(
    server: LoopbackHub, status: int, kind: type[LlmrunError]
) -> None:
    server.faults.statuses = [("/api/", status, {"Retry-After": "17"})]
    error = refused(server)
    assert isinstance(error, kind)
    if isinstance(error, TransientFailure):
        assert str(status) in error.message
        assert error.wait_s == 17


@pytest.mark.parametrize("body", [b"<html>please log in</html>", b"[]", b'{"sha": "../..", "siblings": []}'])
def test_an_answer_that_is_not_a_hubs_is_said_to_be_none(
    server: LoopbackHub, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.statuses = [("/api/", 200, {"X-Body": "yes"})]
    monkeypatch.setattr("tests.support.hub.TROUBLE", body)
    assert "did not answer like a Hub" in refused(server).message


def test_a_dead_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("llmrun.store.hub.time.sleep", waited.append)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(TransientFailure, match="cannot be reached"):
            Hub(f"http://127.0.0.1:{taken.getsockname()[1]}").listing(REPO)
    assert waited == []


def test_a_hub_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TransientFailure, match="stopped answering"):
            Hub(f"http://127.0.0.1:{silent.getsockname()[1]}", read_s=0.2).listing(REPO)


@pytest.mark.parametrize("proxied", [False, True])
def test_who_cannot_be_reached_is_named(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    """The host of files is not the Hub's own, and behind a proxy neither is asked directly."""
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    request = httpx2.Request("GET", "http://me:secret@files.invalid:81/x?signature=secret")
    asked = Asked(server.endpoint, REPO, "main", "x")
    with pytest.raises(TransientFailure) as caught, told_plainly(asked):
        raise httpx2.ConnectError("no route", request=request)
    assert ("127.0.0.1:9" if proxied else "http://files.invalid:81") in caught.value.message
    assert ("HTTP_PROXY" in caught.value.hint) == proxied
    assert "secret" not in caught.value.message + caught.value.hint


def test_a_hub_without_a_trusted_certificate_is_refused() -> None:
    with socket.socket() as plain:
        plain.bind(("127.0.0.1", 0))
        plain.listen()

        def answer() -> None:
            connection, _ = plain.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28")  # a TLS alert: handshake failure

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NetworkFailure, match="no trusted connection") as caught:
            Hub(f"https://127.0.0.1:{plain.getsockname()[1]}", connect_s=TIMEOUT_S).listing(REPO)
        thread.join()
    assert "SSL_CERT_FILE" in caught.value.hint


def test_a_password_in_the_endpoint_is_not_shown(server: LoopbackHub) -> None:
    server.gated = {REPO}
    hub = Hub(server.endpoint.replace("http://", "http://me:secret@"))
    listing = hub.listing(REPO)
    with pytest.raises(NetworkFailure) as caught:
        received(hub, listing, 0, 4)
    assert "secret" not in caught.value.message + caught.value.hint
    assert server.endpoint in caught.value.hint
    assert all(r.headers["authorization"].startswith("Basic ") for r in server.log)


CHILD = "import sys; from llmrun.store.hub import Hub; print(len(Hub().listing(sys.argv[1]).files))"


def listed_by_a_child(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A listing in a fresh process, since the client makes its connections' context once."""
    command = [sys.executable, "-c", CHILD, REPO]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_requests_go_through_the_proxy(server: LoopbackHub) -> None:
    environment = {"HTTP_PROXY": server.endpoint, "HF_ENDPOINT": "http://hub.invalid", "NO_PROXY": ""}
    done = listed_by_a_child(environment | {"http_proxy": server.endpoint, "no_proxy": ""})
    assert done.stdout.strip() == "2", done.stderr
    assert [request.host for request in server.log] == ["hub.invalid"]


@pytest.mark.parametrize(
    "endpoint",
    ["garbage", "127.0.0.1:8899", "ftp://hub", "http://", "http://[::1", "http://h:99999", "http://a\nb"],
)
def test_what_cannot_be_an_address_is_told_as_the_endpoint(endpoint: str) -> None:
    done = listed_by_a_child({"HF_ENDPOINT": endpoint})
    assert "NetworkFailure: HF_ENDPOINT is no address" in done.stderr


def test_a_variable_that_the_client_cannot_read_is_a_network_failure() -> None:
    done = listed_by_a_child({"HF_ENDPOINT": "http://hub.invalid", "HF_HUB_DOWNLOAD_TIMEOUT": "soon"})
    assert "NetworkFailure: the Hub's client cannot be used as it is set up" in done.stderr


@pytest.mark.parametrize("proxy", ["nonsense://x", "socks5://127.0.0.1:1", "http://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_a_network_failure(proxy: str) -> None:
    environment = {"HTTP_PROXY": proxy, "http_proxy": proxy, "NO_PROXY": "", "no_proxy": ""}
    done = listed_by_a_child(environment | {"HF_ENDPOINT": "http://hub.invalid"})
    assert done.stderr.splitlines()[-1].startswith("llmrun."), done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_private_certificate_authority_is_trusted_by_its_file(server: LoopbackHub, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*make.split(), *name, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    endpoint = server.with_tls(certificate, key)
    environment = {"HF_ENDPOINT": endpoint, "SSL_CERT_FILE": str(certificate)}
    assert listed_by_a_child(environment).stdout.strip() == "2"
    refused = listed_by_a_child({"HF_ENDPOINT": endpoint, "SSL_CERT_FILE": ""})
    assert "NetworkFailure: no trusted connection" in refused.stderr


@pytest.mark.parametrize("token", ["hf_ü", "hf_a\nb"])
def test_a_token_that_cannot_be_sent_is_not_shown(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(NetworkFailure) as caught:
        asking(server).listing(REPO)
    assert token not in str(caught.value)
    assert "HF_TOKEN" in caught.value.message


# -- the boundary -------------------------------------------------------------------------------------------


def foreign_exceptions() -> list[type[Exception]]:
    modules = (httpx2, huggingface_hub.errors)
    found = {
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Exception) and member.__module__.startswith(("httpx2", "huggingface_hub"))
    }
    return sorted(found, key=lambda c: (c.__module__, c.__name__))


@pytest.mark.parametrize("kind", foreign_exceptions(), ids=lambda c: c.__name__)
def test_no_foreign_exception_passes_the_boundary(kind: type[Exception]) -> None:
    told = "what the other side said"
    error = kind(told) if issubclass(kind, httpx2.RequestError) else kind.__new__(kind)
    error.args = (told,)
    with pytest.raises(NetworkFailure) as caught, told_plainly(Asked("http://hub", REPO)):
        raise error
    assert caught.value.message
    assert caught.value.hint


def test_a_bug_of_our_own_is_not_called_a_network_failure() -> None:
    with pytest.raises(KeyError), told_plainly(Asked("http://hub", REPO)):
        raise KeyError("x")


def test_retry_after_is_read_as_seconds_as_a_date_and_from_the_hubs_own_header() -> None:
    assert retry_after_s({"retry-after": "12"}) == 12
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    assert 3600 < (retry_after_s({"retry-after": later}) or 0) <= 7200
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({"ratelimit": '"api";r=0;t=41'}) == 41
    assert retry_after_s({"ratelimit": '"api";r=9;t=41'}) is None
    assert retry_after_s({}) is None


# -- any answer ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "rfilename": st.sampled_from(["a.gguf", "../a", "/a", "a\\b", "C:a", "q/b.gguf"]) | JSON,
        "size": st.integers(-2, 1 << 70) | JSON,
        "blobId": st.sampled_from(["a" * 40, "A" * 40, "../" + "a" * 37, "ä" * 40]) | JSON,
        "lfs": st.fixed_dictionaries({}, optional={"sha256": st.just("f" * 64) | JSON, "size": JSON}) | JSON,
    },
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "sha": st.just("a" * 40) | JSON,
        "siblings": st.lists(ENTRY | JSON, max_size=4) | JSON,
        "id": st.sampled_from([REPO, REPO.upper(), "../../x", "other/repo"]) | JSON,
        "gated": JSON,
    },
)


@given(DOCUMENT | JSON)
def test_any_listing_gives_safe_names_or_is_refused(document: object) -> None:
    try:
        listing = parse_listing(document, Asked("http://hub", REPO, "main"))
    except NetworkFailure:
        return
    assert listing.repo.lower() == REPO.lower()
    for file in listing.files:
        assert "/".join(safe_parts(file.path)) == file.path
        assert file.size_bytes >= 0
        assert re.fullmatch("([0-9a-f]{40}|[0-9a-f]{64})?", file.blob_name)


@given(st.text(max_size=30) | st.from_regex("[0-9]{1,400}") | st.dates().map(str))
def test_any_retry_after_is_a_time_or_none(value: str) -> None:
    found = retry_after_s({"retry-after": value})
    assert found is None or found >= 0
