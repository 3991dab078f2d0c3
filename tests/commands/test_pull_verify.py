"""`llmrun pull --verify`: what is here is hashed, and what is damaged, and nothing else, is fetched anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.archs import write_split
from tests.support.hub import REPO
from tests.support.pulling import Online
from tests.support.waiting import TIMEOUT_S, wait_until

N_PARTS = 3


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")


def without_link(file: Path) -> None:
    """As a cache lies on a disk without links."""
    content = file.read_bytes()
    file.resolve().unlink()
    file.unlink()
    file.write_bytes(content)


@pytest.fixture
def parts(online: Online, tmp_path: Path) -> list[Path]:
    """Files in the cache of a model in three parts that was pulled, in order."""
    for no, part in enumerate(write_split(tmp_path, "llama", N_PARTS), 1):
        online.server.add(f"m-Q8_0-{no:05d}-of-{N_PARTS:05d}.gguf", part)
    pulled = online("pull", REPO, "--json").document
    online.server.log.clear()
    return [Path(file["file"]) for file in pulled["files"]]


def contents(parts: list[Path]) -> list[bytes]:
    return [part.read_bytes() for part in parts]


def test_what_is_intact_is_told_without_any_network(online: Online, parts: list[Path]) -> None:
    ended = online("pull", f"{REPO}:q8_0", "--verify", "--json")
    assert [file["verified"] for file in ended.document["files"]] == ["sha256"] * N_PARTS
    assert (ended.document["received_bytes"], online.server.log) == (0, [])
    online.offline()
    assert online("pull", REPO, "--verify").status == 0
    assert online("pull", REPO, "--verify", HF_HUB_OFFLINE="1").status == 0


@pytest.mark.parametrize("damage", [flip, cut, grow])
@pytest.mark.parametrize("links", [True, False])
def test_the_damaged_part_alone_is_fetched(
    online: Online, parts: list[Path], damage: Callable[[Path], None], links: bool
) -> None:
    whole, taken_bytes = contents(parts), online.taken_bytes()
    if not links:
        without_link(parts[1])
    damage(parts[1])
    ended = online("pull", REPO, "--verify", "--json")
    assert ended.status == 0
    received = [file["received_bytes"] for file in ended.document["files"]]
    assert received == [0, len(whole[1]), 0]
    assert online.server.sent() == len(whole[1])
    assert contents(parts) == whole
    assert (online.taken_bytes(), online.partial()) == (taken_bytes, [])
    online.server.log.clear()
    assert online("pull", REPO, "--verify").status == 0
    assert online.server.log == []


def test_every_damaged_part_is_told_by_its_name(online: Online, parts: list[Path]) -> None:
    for part in parts[:2]:
        flip(part)
    lines = online("pull", REPO, "--verify").err.splitlines()
    for part, line in zip(parts, lines, strict=False):
        assert line.startswith(f"{part.name}: ")
        assert ("damaged" in line, "verified" in line) == (part != parts[2], part == parts[2])


def test_a_plain_pull_trusts_the_size(online: Online, parts: list[Path]) -> None:
    """What `--verify` is for."""
    flip(parts[1])
    assert online("pull", REPO).status == 0
    assert online.server.bodies() == []


@pytest.mark.parametrize("env", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_the_hub_damage_is_told_with_both_digests_and_left(
    online: Online, parts: list[Path], env: dict[str, str]
) -> None:
    right = parts[1].resolve().name
    flip(parts[1])
    before = contents(parts)
    ended = online("pull", REPO, "--verify", "-q", **env)
    assert ended.status == 8
    assert parts[1].name in ended.err
    assert right in ended.err
    assert contents(parts) == before


def test_a_commit_that_the_hub_has_forgotten_is_told(online: Online, parts: list[Path]) -> None:
    flip(parts[1])
    online.server.add(parts[1].name, b"something newer")
    ended = online("pull", REPO, "--verify")
    assert ended.status == 8
    assert "is damaged" in ended.err
    assert online.server.bodies() == []


def test_without_links_the_listing_tells_the_digest(online: Online, parts: list[Path]) -> None:
    without_link(parts[1])
    assert online("pull", REPO, "--verify").status == 0
    assert online.server.bodies() == []
    assert len(online.server.log) == 1
    ended = online("pull", REPO, "--verify", HF_HUB_OFFLINE="1")
    assert (ended.status, parts[1].name in ended.err) == (8, True)


def test_a_small_file_is_checked_by_its_git_id(online: Online, tmp_path: Path) -> None:
    (part,) = write_split(tmp_path, "llama", 1)
    online.server.add("m-Q8_0.gguf", part.read_bytes(), large=False)
    (file,) = online("pull", REPO, "--json").document["files"]
    (again,) = online("pull", REPO, "--verify", "--json").document["files"]
    assert again["verified"] == "git"
    flip(Path(file["file"]))
    (mended,) = online("pull", REPO, "--verify", "--json").document["files"]
    assert mended["received_bytes"] == part.stat().st_size


def test_what_is_not_here_is_refused_with_the_command_that_fetches_it(
    online: Online, parts: list[Path]
) -> None:
    assert online("pull", "maker/other", "--verify").status == 3
    ended = online("pull", REPO, "--verify", "--quant", "Q4_K_M")
    assert (ended.status, f"llmrun pull {REPO}:Q4_K_M" in ended.err) == (3, True)
    parts[1].unlink()
    ended = online("pull", REPO, "--verify")
    assert (ended.status, f"llmrun pull {REPO}" in ended.err) == (3, True)


@pytest.mark.parametrize(
    "arguments", [("./x.gguf",), ("smollm2-135m",), ("--list",), (REPO, "--list"), (REPO, "--revision", "v2")]
)
def test_what_cannot_be_verified_is_refused(online: Online, arguments: tuple[str, ...]) -> None:
    assert online("pull", *arguments, "--verify").status == 2
    assert online.server.log == []


def test_an_interrupted_mend_goes_on(online: Online, parts: list[Path]) -> None:
    whole, half = contents(parts), parts[1].stat().st_size // 2
    flip(parts[1])
    online.server.faults.hold = threading.Event()
    running = online.cli.start("pull", REPO, "--verify", env={"HF_HUB_DOWNLOAD_TIMEOUT": f"{TIMEOUT_S:.0f}"})
    wait_until(lambda: [part.stat().st_size for part in online.partial()] == [half])
    ended = running.interrupt()
    online.server.faults.hold.set()
    assert (ended.status, "kept" in ended.err) == (130, True)
    online.server.log.clear()
    assert online("pull", REPO, "--verify").status == 0
    assert [request.first_byte for request in online.server.bodies()] == [half]
    assert (contents(parts), online.partial()) == (whole, [])


def test_progress_is_shown_and_quiet_is_quiet(online: Online, parts: list[Path]) -> None:
    with online.cli.terminal("pull", REPO, "--verify") as terminal:
        assert terminal.ended() == 0
        assert terminal.text.count("verified") == N_PARTS
    ended = online("pull", REPO, "--verify", "-q")
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
