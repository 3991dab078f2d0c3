"""Files that broke, or that another version wrote: what can be read is read, nothing is misread."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import UsageError
from llmrun.journal.session import Session
from llmrun.journal.session_records import Transcript
from llmrun.journal.sessions import SessionStore

from .conftest import ticking
from tests.support.sessions import transcript_of

LAST_CHANGES: dict[str, Callable[[Session], object]] = {
    "turn": lambda session: session.add_turn("é🦙", "last\n", reasoning="r", usage={"prompt_tokens": 3}),
    "regen": lambda session: session.add_turn("two", "again", regen=True),
    "undo": lambda session: session.undo(),
    "clear": lambda session: session.clear(),
    "system": lambda session: session.set_system("new"),
    "model": lambda session: session.set_model("new"),
}


def two_turns(store: SessionStore) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        session.add_turn("one", "1")
        session.add_turn("two", "2")


def conversation(transcript: Transcript) -> tuple[object, ...]:
    return transcript.model, transcript.system, transcript.turns


@pytest.mark.parametrize("kind", LAST_CHANGES)
def test_a_write_torn_anywhere_costs_the_record_in_flight_only(
    kind: str, store: SessionStore, folder: Path
) -> None:
    two_turns(store)
    path = folder / "a.jsonl"
    before, kept = store.read("a"), path.read_bytes()
    with closing(store.open("a")) as session:
        LAST_CHANGES[kind](session)
    after, whole = store.read("a"), path.read_bytes()
    assert conversation(before) != conversation(after)
    for length in range(len(kept), len(whole)):
        path.write_bytes(whole[:length])
        # the line feed alone may be missing
        expected = after if length == len(whole) - 1 else before
        torn = length not in (len(kept), len(whole) - 1)
        with closing(store.open("a")) as session:
            assert conversation(transcript_of(session)) == conversation(expected)
            assert session.damaged_lines == torn
            session.add_turn("next", "n")
        again = store.read("a")
        assert again.turns[:-1] == expected.turns
        assert again.turns[-1].user == "next"
        assert again.damaged_lines == torn


def test_a_header_torn_anywhere_is_refused(store: SessionStore, folder: Path) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        header = (folder / "a.jsonl").read_bytes()
        session.add_turn("u", "a")
    for length in range(len(header) - 1):
        (folder / "a.jsonl").write_bytes(header[:length])
        with pytest.raises(UsageError):
            store.open("a")
    (folder / "a.jsonl").write_bytes(header[:-1])
    assert store.read("a").system == "s"


@given(data=st.data(), junk=st.binary(min_size=1, max_size=40))
def test_a_damaged_line_never_changes_what_others_mean(
    data: st.DataObject, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Where a turn's line is lost, the rest replays as if that turn alone were not there."""
    root = tmp_path_factory.mktemp("junk")
    store = SessionStore(root, ticking())
    with closing(store.create("a", model="m", system="")) as session:
        for text in "abcd":
            session.add_turn(text, text)
        session.undo(2)
        session.add_turn("e", "e")
        session.add_turn("e", "f", regen=True)
        session.add_turn("g", "g")
        session.undo()
    path = root / "sessions" / "a.jsonl"
    lines = path.read_bytes().splitlines()
    lost = data.draw(st.sampled_from([1, 2, 3, 4, 6, 7, 8]))
    lines[lost] = b"{" + junk.replace(b"\n", b"")
    path.write_bytes(b"\n".join(lines) + b"\n")
    read = store.read("a")
    answers = [turn.answer for turn in read.turns]
    # 1 and 2 are a and b, 7 is the second answer to e; the others were undone or replaced
    expected = {1: ["b", "f"], 2: ["a", "f"], 7: ["a", "b", "e"]}.get(lost, ["a", "b", "f"])
    assert answers == expected
    assert read.damaged_lines == 1


TURN = {
    "schema": "llmrun.turn/1",
    "number": 3,
    "time": "2025-03-01T12:00:00.000Z",
    "user": "u",
    "answer": "a",
    "reasoning": "",
    "interrupted": False,
    "finish_reason": "stop",
    "model": "m",
    "usage": None,
    "replaces": None,
}


def add_line(folder: Path, record: object) -> None:
    with (folder / "a.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


@pytest.mark.parametrize(
    "change",
    [
        {"user": 1},
        {"answer": None},
        {"finish_reason": "bored"},
        {"usage": 3},
        {"number": -1},
        {"number": True},
        {"number": "3"},
        {"time": "yesterday"},
        {"time": "0001-01-01T00:00:00+23:59"},
        {"model": []},
        {"schema": "llmrun.undo/1", "first": "x"},
        {"schema": "llmrun.system/1", "system": {}},
    ],
    ids=str,
)
def test_a_record_of_the_wrong_shape_is_damaged(
    change: dict[str, object], store: SessionStore, folder: Path
) -> None:
    two_turns(store)
    before = conversation(store.read("a"))
    add_line(folder, {**TURN, **change})
    read = store.read("a")
    assert conversation(read) == before
    assert read.damaged_lines == 1


def test_fields_that_a_later_release_adds_are_ignored(store: SessionStore, folder: Path) -> None:
    two_turns(store)
    add_line(folder, {**TURN, "mood": "good", "usage": {"prompt_tokens": 1, "new": [1]}})
    read = store.read("a")
    assert read.damaged_lines == 0
    assert read.turns[-1].user == "u"


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("llmrun.turn/2", "llmrun.turn/2"),
        ("llmrun.undo/17", "llmrun.undo/17"),
        ("llmrun.fork/1", "llmrun.fork/1"),
        ("other/1", "other/1"),
        ("llmrun.turn", "llmrun.turn"),
        ("llmrun.turn/x\x1b", "llmrun.turn/x"),
    ],
)
def test_what_another_version_wrote_is_refused_by_name(
    schema: str, named: str, store: SessionStore, folder: Path
) -> None:
    two_turns(store)
    add_line(folder, {**TURN, "schema": schema})
    whole = (folder / "a.jsonl").read_bytes()
    for use in (store.open, store.read):
        with pytest.raises(UsageError) as caught:
            use("a")
        assert named in caught.value.message
        assert caught.value.message.isprintable()
    assert (folder / "a.jsonl").read_bytes() == whole
    assert [one.problem != "" for one in store.list()] == [True]
    assert store.last() is None


def test_a_newer_session_is_refused_even_if_its_header_has_changed(store: SessionStore, folder: Path) -> None:
    two_turns(store)
    (folder / "a.jsonl").write_text('{"schema":"llmrun.session/2","other":"fields"}\n')
    with pytest.raises(UsageError, match=r"llmrun\.session/2"):
        store.open("a")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"hello\n", b"\x00" * 100, json.dumps(TURN).encode(), b'{"schema":"llmrun.session/1"}\n'],
)
def test_a_file_without_a_header_is_no_session(content: bytes, store: SessionStore, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(content)
    with pytest.raises(UsageError):
        store.open("a")
    assert (folder / "a.jsonl").read_bytes() == content


def test_two_sessions_in_one_file_are_refused(store: SessionStore, folder: Path) -> None:
    two_turns(store)
    path = folder / "a.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(UsageError):
        store.open("a")


def test_chats_that_wrote_at_once_for_want_of_locks_lose_no_turn(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_turns(store)
    monkeypatch.setattr("llmrun.journal.sessions.try_lock", lambda descriptor: True)
    with closing(store.open("a")) as one, closing(store.open("a")) as other:
        one.add_turn("three", "x")
        other.add_turn("also three", "y")
    assert [turn.user for turn in store.read("a").turns] == ["one", "two", "three", "also three"]
