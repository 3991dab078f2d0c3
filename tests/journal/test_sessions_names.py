"""Whatever a user types is a safe file name or is refused."""

from __future__ import annotations

import unicodedata
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.session_names import LONGEST_NAME_BYTES, checked_name, copy_names, name_key, quoted
from llmrun.journal.sessions import SessionStore

UNSAFE = (
    *(
        "",
        " ",
        ".",
        "..",
        "../a",
        "a/b",
        "a\\b",
        "/etc/passwd",
        ".a",
        "-a",
        " a",
        "a ",
        "a.",
        "a\n",
        "a\x00b",
    ),
    *("a\x1b[2J", "c:a", "a*", "a?", "nul", "COM1", "com1.txt", "\u202ea", "a\u00a0b", "\udc80", "a\u200b"),
    *("x" * (LONGEST_NAME_BYTES + 1), "日" * (LONGEST_NAME_BYTES // 3 + 1)),
)
HOSTILE = st.text(st.sampled_from("a.-/\\ :\x00\n\x1b\x9b\u202e\udc80é\u0301日"), max_size=12)


@given(text=st.one_of(HOSTILE, st.text(st.characters(codec=None), max_size=80)))
def test_a_name_is_one_visible_file_name_or_is_refused_in_one_safe_line(text: str) -> None:
    refusal = None
    try:
        name = checked_name(text)
    except UsageError as error:
        refusal = error
    if refusal is not None:
        assert refusal.message.isprintable()
        assert refusal.hint
        return
    assert name == unicodedata.normalize("NFC", text)
    assert name.isprintable()
    path = Path("folder") / f"{name}.jsonl"
    assert path.parent == Path("folder")
    assert path.name == f"{name}.jsonl"
    assert not name.startswith((".", "-"))
    assert len(path.name.encode()) <= 255
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "text", ["a", "My notes 3", "été", "日記", "a.b", "x-2", "what's new, (part 1)", "🦙"]
)
def test_ordinary_names_are_taken(text: str, store: SessionStore) -> None:
    with closing(store.create(text, model="m", system="")) as session:
        session.add_turn("u", "a")
        assert session.name == text
    assert [one.name for one in store.list()] == [text]
    with closing(store.open(text)) as session:
        assert len(session.turns) == 1


@pytest.mark.parametrize(
    "text",
    UNSAFE,
    ids=ascii,
)
def test_unsafe_names_are_refused_everywhere(text: str, store: SessionStore, tmp_path: Path) -> None:
    with closing(store.unsaved(model="m", system="")) as session:
        for use in (store.open, store.read, store.exists, lambda name: store.save_as(session, name)):
            with pytest.raises(UsageError) as caught:
                use(text)
            assert caught.value.message.isprintable()
        with pytest.raises(UsageError):
            store.create(text, model="m", system="")
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_not_there_is_a_usage_error(store: SessionStore) -> None:
    with pytest.raises(UsageError) as caught:
        store.open("nothing")
    assert "nothing" in caught.value.message


@pytest.mark.parametrize(
    ("first", "second"), [("Notes", "notes"), ("e\u0301t\u00e9", "\u00c9T\u00c9"), ("Straße", "STRASSE")]
)
def test_letter_case_and_composition_do_not_make_another_session(
    first: str, second: str, store: SessionStore
) -> None:
    with closing(store.create(first, model="m", system="")) as session:
        session.add_turn("u", "a")
    name = session.name
    assert store.exists(second)
    with pytest.raises(WriteFailure):
        store.create(second, model="m", system="")
    with closing(store.open(second)) as session:
        assert session.name == name
        assert len(session.turns) == 1


def test_an_exact_name_wins_over_one_in_another_case(store: SessionStore, folder: Path) -> None:
    with closing(store.create("Notes", model="m", system="")) as session:
        session.add_turn("u", "a")
    copy = folder / "notes.jsonl"
    if copy.exists():
        pytest.skip("this file system takes them for one")
    copy.write_bytes((folder / "Notes.jsonl").read_bytes())
    for name in ("Notes", "notes"):
        with closing(store.open(name)) as session:
            assert session.name == name


def test_a_file_in_decomposed_form_is_found(store: SessionStore, folder: Path) -> None:
    """As macOS may write it."""
    with closing(store.create("été", model="m", system="")) as session:
        session.add_turn("u", "a")
    (folder / "été.jsonl").rename(folder / f"{unicodedata.normalize('NFD', 'été')}.jsonl")
    assert [one.name for one in store.list()] == ["été"]
    with closing(store.open("été")) as session:
        session.add_turn("v", "b")
    assert len(store.read("été").turns) == 2


@given(
    name=st.text(st.sampled_from("ab日🦙"), min_size=1, max_size=LONGEST_NAME_BYTES).filter(
        lambda name: len(name.encode()) <= LONGEST_NAME_BYTES
    )
)
def test_names_of_copies_are_names(name: str) -> None:
    copies = list(islice(copy_names(name), 12))
    assert len({name_key(copy) for copy in copies}) == 12
    for copy in copies:
        assert checked_name(copy) == copy


def test_quoted_names_stay_short_and_printable() -> None:
    assert quoted("\x1b[2J\udc80" * 100).isprintable()
    assert len(quoted("x" * 1000)) < 80
