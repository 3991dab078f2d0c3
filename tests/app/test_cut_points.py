"""Natural places to cut a prompt, on a tokenizer whose tokens are pieces of several characters."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.app.prefixes.cut_points import cut_points
from llmrun.app.prompt_input import document_ends, join_prompt
from llmrun.chat.messages import Message


def tokenized(text: str, lengths: list[int]) -> list[bytes]:
    """The text as pieces of the given lengths in turn, in bytes."""
    data, pieces, at = text.encode(), [], 0
    for length in (lengths * len(data))[: len(data)]:
        if at >= len(data):
            break
        pieces.append(data[at : at + length])
        at += length
    return pieces


SYSTEM, QUESTION = "Answer briefly, über alles.", "What does it say?"
DOCUMENT = join_prompt([("a.txt", "one\ntwo — drei"), ("b.txt", "three")], [QUESTION], None)
MESSAGES = (
    Message("system", SYSTEM),
    Message("user", "hi"),
    Message("assistant", "yo"),
    Message("user", DOCUMENT),
)
TEXT = "".join(f"<|{m.role}|>{m.content}\n" for m in MESSAGES) + "<|assistant|>"


@settings(deadline=None, database=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_each_place_is_the_last_token_boundary_at_or_before_it(lengths: list[int]) -> None:
    pieces = tokenized(TEXT, lengths)
    found = cut_points(MESSAGES, TEXT, range(len(pieces)), lambda token: pieces[token], 0)
    starts = [sum(map(len, pieces[:n])) for n in range(len(pieces))]
    ends = [TEXT.index(mark) + len(mark) for mark in (SYSTEM, "end of a.txt ---", "end of b.txt ---")]
    places = [len(TEXT[:end].encode()) for end in (*ends, TEXT.rindex(DOCUMENT))]
    expected = {max(n for n, start in enumerate(starts) if start <= place) for place in places}
    assert set(found) == {place for place in expected if place > 0}
    assert list(found) == sorted(found)


def test_only_what_is_evaluated_is_looked_at() -> None:
    pieces, asked = tokenized(TEXT, [3]), []

    def piece(token: int) -> bytes:
        asked.append(token)
        return pieces[token]

    start = len(pieces) - 20
    found = cut_points(MESSAGES, TEXT, range(len(pieces)), piece, start)
    assert min(asked) >= start
    assert all(place > start for place in found)


def test_a_template_that_changes_the_texts_leaves_their_places_out() -> None:
    text = "USER: WHAT DOES IT SAY?"
    pieces = tokenized(text, [4])
    assert cut_points(MESSAGES, text, range(len(pieces)), lambda token: pieces[token], 0) == ()
    assert cut_points((), text, range(len(pieces)), lambda token: pieces[token], 0) == ()


def test_ends_of_documents_are_those_that_were_joined() -> None:
    ends = document_ends(DOCUMENT)
    assert [DOCUMENT[:end].rsplit("\n", 1)[-1] for end in ends] == [
        "--- end of a.txt ---",
        "--- end of b.txt ---",
    ]
    assert document_ends(QUESTION) == []
