"""What a session keeps: any sequence of changes gives the same conversation when it is read again."""

from __future__ import annotations

import json
import os
import stat
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import WriteFailure
from llmrun.events import FinishReason
from llmrun.journal.session import Session
from llmrun.journal.sessions import SessionStore

from .conftest import ticking
from tests.support.sessions import transcript_of

POSIX = pytest.mark.skipif(os.name != "posix", reason="POSIX files")

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
REASONS: st.SearchStrategy[FinishReason] = st.sampled_from(("stop", "length", "context", "interrupted"))
CHANGES = st.one_of(
    st.tuples(st.just("turn"), TEXTS, TEXTS, TEXTS, REASONS),
    st.tuples(st.just("regen"), TEXTS, TEXTS, TEXTS, REASONS),
    st.tuples(st.just("undo"), st.integers(1, 3)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("system"), TEXTS),
    st.tuples(st.just("model"), TEXTS),
    st.tuples(st.just("reopen")),
)


@dataclass
class Expected:
    """The same conversation as plain values."""

    system: str
    model: str
    turns: list[tuple[object, ...]] = field(default_factory=list)

    def take(self, change: tuple[object, ...]) -> None:
        kind, *rest = change
        if kind in ("turn", "regen"):
            del self.turns[len(self.turns) - (kind == "regen" and self.turns != []) :]
            self.turns.append((*rest, self.model))
        elif kind == "undo":
            del self.turns[-int(str(rest[0])) :]
        elif kind == "clear":
            self.turns.clear()
        elif kind in ("system", "model"):
            setattr(self, str(kind), rest[0])


def make(session: Session, change: tuple[object, ...]) -> None:
    match change:
        case (("turn" | "regen") as kind, str(user), str(answer), str(reasoning), reason):
            session.add_turn(
                user,
                answer,
                reasoning=reasoning,
                finish_reason=reason,  # type: ignore[arg-type]
                regen=kind == "regen",
            )
        case ("undo", int(turns)):
            session.undo(turns)
        case ("clear",):
            session.clear()
        case ("system", str(text)):
            session.set_system(text)
        case ("model", str(ref)):
            session.set_model(ref)


def content(session: Session) -> tuple[object, ...]:
    turns = [(t.user, t.answer, t.reasoning, t.finish_reason, t.model) for t in session.turns]
    return session.system, session.model, turns


@given(changes=st.lists(CHANGES, max_size=15))
def test_any_changes_replay_to_the_same_conversation(
    changes: list[tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = SessionStore(tmp_path_factory.mktemp("changes"), ticking())
    session = store.create("kept", model="m", system="s")
    session.add_turn("u", "a")
    expected = Expected("s", "m", [("u", "a", "", "stop", "m")])
    for change in changes:
        if change == ("reopen",):
            session.close()
            session = store.open("kept")
        make(session, change)
        expected.take(change)
        assert content(session) == (expected.system, expected.model, expected.turns)
    before = transcript_of(session)
    session.close()
    with closing(store.open("kept")) as again:
        assert transcript_of(again) == before
        assert again.damaged_lines == 0
        assert again.copied_from is None


def test_a_turn_keeps_what_was_measured(store: SessionStore) -> None:
    usage = MappingProxyType(
        {"prompt_tokens": 7, "prompt_tokens_details": MappingProxyType({"cached_tokens": 3})}
    )
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("u", "half", reasoning="r", finish_reason="interrupted", usage=usage)
        session.set_model("other")
        session.add_turn("v", "b")
    first, second = store.read("a").turns
    assert first.interrupted
    assert first.usage == {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
    assert (first.model, second.model) == ("m", "other")
    assert not second.interrupted
    assert second.usage is None
    assert second.time - first.time == timedelta(seconds=2)


def test_every_change_is_in_the_file_when_it_returns(store: SessionStore) -> None:
    with closing(store.create("a", model="m", system="")) as session:
        for change in (("turn", "u", "a", "", "stop"), ("system", "s"), ("undo", 1), ("model", "n")):
            make(session, change)
            assert store.read("a") == transcript_of(session)


def test_every_change_is_flushed_to_the_disk(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        flushed.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    with closing(store.create("a", model="m", system="")) as session:
        path = session.path
        assert path is not None
        assert path.stat().st_size in flushed
        for change in (("turn", "u", "a", "", "stop"), ("system", "s"), ("undo", 1), ("model", "n")):
            make(session, change)
            assert flushed[-1] == path.stat().st_size


def test_undo_gives_back_what_it_took(store: SessionStore) -> None:
    with closing(store.create("a", model="m", system="")) as session:
        for text in "abc":
            session.add_turn(text, "answer")
        assert [turn.user for turn in session.undo(2)] == ["b", "c"]
        assert [turn.user for turn in session.undo(5)] == ["a"]
        assert session.undo() == ()
        with pytest.raises(ValueError, match="one turn"):
            session.undo(0)


def test_changes_that_change_nothing_are_not_recorded(store: SessionStore, folder: Path) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        before = (folder / "a.jsonl").read_bytes()
        session.undo()
        session.clear()
        session.set_system("s")
        session.set_model("m")
        assert (folder / "a.jsonl").read_bytes() == before


def test_lone_surrogates_become_replacement_marks_and_all_else_stays(store: SessionStore) -> None:
    odd = b"caf\xe9 \xff".decode("utf-8", "surrogateescape") + "🦙\x00\x1b[2J\r\n\u2028"
    mended = "caf\ufffd \ufffd🦙\x00\x1b[2J\r\n\u2028"
    with closing(store.create("a", model=odd, system=odd)) as session:
        session.add_turn(odd, odd, reasoning=odd)
        live = transcript_of(session)
    read = store.read("a")
    assert live == read
    turn = read.turns[0]
    assert {read.model, read.system, turn.user, turn.answer, turn.reasoning, turn.model} == {mended}


@POSIX
def test_files_and_folders_are_private(store: SessionStore, folder: Path) -> None:
    old = os.umask(0)
    try:
        with closing(store.create("a", model="m", system="")) as session:
            session.add_turn("u", "a")
            store.save_as(session, "b")
    finally:
        os.umask(old)
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("a.jsonl", "b.jsonl")} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_a_session_nobody_spoke_in_leaves_no_file(store: SessionStore, folder: Path) -> None:
    store.create("a", model="m", system="").close()
    assert list(folder.iterdir()) == []
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("u", "a")
    store.open("a").close()
    assert store.exists("a")


def test_a_session_in_memory_writes_nothing_until_it_is_saved(store: SessionStore, tmp_path: Path) -> None:
    with closing(store.unsaved(model="m", system="s")) as session:
        session.add_turn("u", "a")
        session.add_turn("v", "b")
        session.undo()
        assert list(tmp_path.iterdir()) == []
        path = store.save_as(session, "later")
        assert path.exists()
        assert store.read("later").turns == session.turns
        assert store.read("later").system == "s"


def test_save_as_copies_what_counts(store: SessionStore) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        session.add_turn("u", "a")
        session.add_turn("v", "b")
        session.set_model("n")
        session.add_turn("v", "c", regen=True)
        session.set_system("t")
        store.save_as(session, "b")
        session.add_turn("w", "d")
        copy = store.read("b")
        assert copy.turns == session.turns[:2]
        assert (copy.name, copy.model, copy.system) == ("b", "n", "t")
        for taken in ("a", "b", "B"):
            with pytest.raises(WriteFailure):
                store.save_as(session, taken)
    assert store.read("b") == copy


def test_a_closed_session_takes_nothing_more(store: SessionStore) -> None:
    session = store.create("a", model="m", system="")
    session.add_turn("u", "a")
    session.close()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.add_turn("v", "b")
    assert len(store.read("a").turns) == 1


def test_generated_names_are_free_even_when_time_and_chance_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "secrets.token_hex", lambda size_bytes: "a" * 2 * size_bytes if size_bytes < 8 else "new"
    )
    store = SessionStore(tmp_path, lambda: datetime(2025, 3, 1, 12, 30, tzinfo=UTC))
    sessions = [store.create(None, model="m", system="") for _ in range(3)]
    assert len({session.name for session in sessions}) == 3
    assert all(session.name.startswith("2025-03-01-123000-") for session in sessions)
    for session in sessions:
        session.close()


def test_lines_are_json_that_other_tools_read(store: SessionStore, folder: Path) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        session.add_turn("u", "a", finish_reason="length")
        session.add_turn("u", "b", regen=True)
        session.undo()
    records = [json.loads(line) for line in (folder / "a.jsonl").read_text().splitlines()]
    assert [(one["schema"], one["number"]) for one in records] == [
        ("llmrun.session/1", 0),
        ("llmrun.turn/1", 1),
        ("llmrun.turn/1", 2),
        ("llmrun.undo/1", 3),
    ]
    assert [one.get("replaces") for one in records] == [None, None, 1, None]
    assert (records[3]["turns"], records[3]["first"]) == (1, 2)
