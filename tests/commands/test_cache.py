"""`llmrun cache`, `run --explain-cache` and `/context`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrun.app.prefixes import cache as prefix_cache

from tests.support.cli import Cli
from tests.support.prefixes import stored_files
from tests.support.tiny import write_tiny

GREEDY = ("--temp", "0", "-n", "4", "--raw")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", "llama", n_ctx=1024)


def test_an_empty_cache(caching: Cli) -> None:
    listed = caching.here("cache", "ls")
    assert (listed.status, listed.out) == (0, b"")
    assert listed.err.startswith("0 prefixes")
    document = caching.here("cache", "ls", "--json").document
    assert (document["schema"], document["prefixes"], document["used_bytes"]) == ("llmrun.cache/1", [], 0)
    assert document["limit_bytes"] > 0
    assert caching.here("cache", "clear").err == "freed 0 B\n"


def test_what_is_kept_is_listed_and_cleared(caching: Cli, tiny: Path) -> None:
    caching.here("run", tiny, "one prompt", *GREEDY)
    caching.here("run", tiny, "another one altogether", *GREEDY, "-c", "1024")
    files = stored_files(caching)
    listed = caching.here("cache", "ls")
    assert len(listed.text.splitlines()) == len(files) == 2
    assert tiny.name in listed.text
    assert sorted(line.split("\t")[-1] for line in listed.text.splitlines()) == ["-c 1024", "-c auto"]
    document = caching.here("cache", "ls", "--json").document
    assert {one["path"] for one in document["prefixes"]} == set(map(str, files))
    assert document["used_bytes"] == sum(path.stat().st_size for path in files)
    one = next(one for one in document["prefixes"] if one["settings"]["n_ctx"] == "1024")
    assert one["tokens"] > 0

    cleared = caching.here("cache", "clear", "--json").document
    assert cleared["freed_bytes"] >= document["used_bytes"]
    assert cleared["prefixes"] == []
    assert not stored_files(caching)


def test_damaged_and_foreign_files_are_told(caching: Cli, tiny: Path) -> None:
    caching.here("run", tiny, "one prompt", *GREEDY)
    (stored,) = stored_files(caching)
    stored.with_name("f" * 32 + stored.suffix).write_bytes(b"something else, of some length")
    stored.write_bytes(stored.read_bytes()[:-1])
    err = caching.here("cache", "ls").err
    assert err.count("warning: ") == 2


def test_the_bound_is_a_setting(caching: Cli, tiny: Path) -> None:
    env = {"LLMRUN_PREFIX_CACHE_MIB": "3"}
    assert caching.here("cache", "ls", "--json", env=env).document["limit_bytes"] == 3 << 20
    caching.here("run", tiny, "one prompt", *GREEDY, "--prefix-cache-mib", "0")
    caching.here("run", tiny, "one prompt", *GREEDY, "--no-prefix-cache")
    assert not stored_files(caching)


def test_a_title_with_escape_sequences_is_shown_safely(caching: Cli, tiny: Path) -> None:
    caching.here("run", tiny, "one prompt", *GREEDY)
    (stored,) = stored_files(caching)
    from llmrun.store.snapshot_file import read_snapshot, write_snapshot

    before = read_snapshot(stored)
    stored.unlink()
    write_snapshot(
        stored,
        model=before.model,
        settings=before.settings,
        title="evil \x1b[2J\ttitle",
        tokens=before.tokens,
        states=[(before.places[0], bytearray(before.places[0].size_bytes))],
        prefill_s=0.0,
    )
    listed = caching.here("cache", "ls")
    assert b"evil" in listed.out
    assert b"\x1b" not in listed.out


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_the_cache_is_explained_on_stderr(caching: Cli, tiny: Path, json_flag: tuple[str, ...]) -> None:
    words = (*GREEDY, *json_flag)
    plain = caching.here("run", tiny, "some words and this", *words, "--no-prefix-cache")
    first = caching.here("run", tiny, "some words and this", *words, "--explain-cache")
    assert "nothing stored" in first.err
    second = caching.here("run", tiny, "some words and that\x1b[2J", *words, "--explain-cache")
    assert "from disk" in second.err
    assert "differs: after" in second.err
    assert "\x1b" not in second.err
    if json_flag:
        assert json.loads(first.text)["text"] == json.loads(plain.text)["text"]
    else:
        assert first.out == plain.out


def test_without_being_asked_nothing_is_explained(caching: Cli, tiny: Path) -> None:
    assert caching.here("run", tiny, "some words", *GREEDY).err == ""
    assert caching.here("run", tiny, "some words", *GREEDY).err == ""


def test_with_v_it_is_told_what_was_kept_and_what_not(
    caching: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "kept on disk: " in caching.here("run", tiny, "one prompt", *GREEDY, "-v").err
    monkeypatch.setattr(prefix_cache, "pays", lambda *_, **__: False)
    assert "not kept: " in caching.here("run", tiny, "another one", *GREEDY, "-v").err
