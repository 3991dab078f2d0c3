"""Which sessions there are, and which one was the last."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmrun.journal.lines import Journal, read
from llmrun.journal.sessions import SessionStore

from tests.support.sessions import transcript_of


def test_an_empty_store_has_no_sessions_and_makes_no_folder(store: SessionStore, tmp_path: Path) -> None:
    assert store.list() == ()
    assert store.last() is None
    assert not store.exists("a")
    assert list(tmp_path.iterdir()) == []


def test_the_list_says_what_each_session_is(store: SessionStore, folder: Path) -> None:
    with (
        closing(store.create("old", model="m", system="")) as old,
        closing(store.create("new", model="n", system="")),
    ):
        old.add_turn("  What is\n\ta llama?  " + "x" * 100, "An animal.")
        old.add_turn("And?", "More.")
        (folder / "broken.jsonl").write_text("nothing\n")
        (folder / "notes.txt").write_text("not ours")
        (folder / ".hidden.jsonl").write_text("")
        (folder / "folder.jsonl").mkdir()
        listed = {one.name: one for one in store.list()}
        assert set(listed) == {"old", "new", "broken"}
        assert [one.name for one in store.list() if not one.problem] == ["old", "new"]
        assert listed["broken"].problem
        assert (listed["old"].turns, listed["old"].model) == (2, "m")
        assert listed["old"].first_words.startswith("What is a llama? xxx")
        assert len(listed["old"].first_words) <= 60
        assert (listed["new"].turns, listed["new"].first_words) == (0, "")
        assert listed["old"].created == transcript_of(old).created
        assert listed["old"].changed == old.turns[-1].time


def test_the_last_session_is_the_one_with_the_latest_record(store: SessionStore, folder: Path) -> None:
    with closing(store.create("a", model="m", system="")) as first:
        first.add_turn("u", "a")
        with closing(store.create("b", model="m", system="")) as second:
            second.add_turn("u", "b")
            assert store.last() == "b"
            first.add_turn("v", "a")
            (folder / "c.jsonl").write_text("broken\n")
            with closing(store.create("unused", model="m", system="")):
                assert store.last() == "a"
                # a copied folder: times of files say nothing
                os.utime(folder / "b.jsonl")
                assert store.last() == "a"
                second.clear()
                assert store.last() == "b"


def test_files_older_than_the_latest_record_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    store = SessionStore(tmp_path, lambda: now)
    for name in ("old", "new"):
        with closing(store.create(name, model="m", system="")) as session:
            session.add_turn("u", "a")
    old = tmp_path / "sessions" / "old.jsonl"
    os.utime(old, (now.timestamp() - 60, now.timestamp() - 60))
    opened: list[str] = []

    def watched(path: Path) -> Journal:
        opened.append(path.stem)
        return read(path)

    monkeypatch.setattr("llmrun.journal.sessions.read", watched)
    assert store.last() == "new"
    assert opened == ["new"]


def test_sessions_in_other_time_zones_compare(tmp_path: Path) -> None:
    times = iter(
        [
            datetime.fromisoformat("2025-03-01T12:00:00+02:00"),
            datetime.fromisoformat("2025-03-01T12:00:00.123456+02:00"),
            datetime.fromisoformat("2025-03-01T11:00:00+00:00"),
            datetime.fromisoformat("2025-03-01T11:00:01+00:00"),
        ]
    )
    store = SessionStore(tmp_path, lambda: next(times))
    for name in "ab":
        with closing(store.create(name, model="m", system="")) as session:
            session.add_turn("u", "a")
    assert store.last() == "b"
    assert store.read("a").turns[0].time == datetime(2025, 3, 1, 10, 0, 0, 123000, tzinfo=UTC)
