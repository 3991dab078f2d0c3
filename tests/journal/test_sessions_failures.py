"""Disks that fill, files that go away, folders that may not be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.sessions import SessionStore

from .conftest import ticking


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches a full disk on and off: records are then written in part, as the system does it."""

    def switch(full: bool) -> None:
        monkeypatch.undo()
        if full:
            write = os.write
            monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:20]))

    return switch


def test_what_a_full_disk_refused_is_written_once_there_is_space(
    store: SessionStore, no_space: Callable[[bool], None]
) -> None:
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("one", "1")
        no_space(True)
        for text in ("two", "three"):
            with pytest.raises(WriteFailure):
                session.add_turn(text, "x")
        assert [turn.user for turn in session.turns] == ["one", "two", "three"]
        assert [turn.user for turn in store.read("a").turns] == ["one"]
        no_space(False)
        session.undo()
        assert store.read("a").turns == session.turns
        assert [turn.user for turn in session.turns] == ["one", "two"]


def test_closing_tries_once_more(store: SessionStore, no_space: Callable[[bool], None]) -> None:
    session = store.create("a", model="m", system="")
    no_space(True)
    with pytest.raises(WriteFailure):
        session.add_turn("one", "1")
    no_space(False)
    session.close()
    assert len(store.read("a").turns) == 1


def test_a_close_that_cannot_write_says_so_and_lets_go_of_the_session(
    store: SessionStore, no_space: Callable[[bool], None]
) -> None:
    session = store.create("a", model="m", system="")
    session.add_turn("one", "1")
    no_space(True)
    with pytest.raises(WriteFailure):
        session.add_turn("two", "2")
    with pytest.raises(WriteFailure):
        session.close()
    no_space(False)
    with closing(store.open("a")) as again:
        assert again.copied_from is None
        assert [turn.user for turn in again.turns] == ["one"]


def test_a_record_that_was_written_twice_counts_once(store: SessionStore, folder: Path) -> None:
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("same", "same")
        session.add_turn("same", "same")
    path = folder / "a.jsonl"
    header, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first + second + second)
    assert len(store.read("a").turns) == 2


@pytest.mark.parametrize("instead", [None, "another file"])
def test_a_file_that_went_away_is_a_write_failure_and_is_not_made_again(
    store: SessionStore, folder: Path, instead: str | None
) -> None:
    session = store.create("a", model="m", system="")
    session.add_turn("u", "a")
    path = folder / "a.jsonl"
    path.unlink()
    if instead is not None:
        path.write_text(instead)
    with pytest.raises(WriteFailure):
        session.add_turn("v", "b")
    assert (path.read_text() if path.exists() else None) == instead
    store.save_as(session, "b")
    assert len(store.read("b").turns) == 2
    with pytest.raises(WriteFailure):
        session.close()


def test_a_folder_that_cannot_be_made_is_a_write_failure(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    store = SessionStore(tmp_path / "data", ticking())
    with pytest.raises(WriteFailure):
        store.create(None, model="m", system="")
    with pytest.raises((UsageError, WriteFailure)):
        store.list()


def test_a_session_that_may_only_be_read_opens(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("u", "a")
    real = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    again = store.open("a")
    with pytest.raises(WriteFailure):
        again.add_turn("v", "b")
    assert [turn.user for turn in again.turns] == ["u", "v"]
    with pytest.raises(WriteFailure):
        again.close()
    with pytest.raises(WriteFailure):
        store.create("b", model="m", system="")
