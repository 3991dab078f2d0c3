"""Reasoning and answer are told apart the same way however the text arrives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.chat.reasoning import BETWEEN_BLOCKS, CLOSING, MARKER_TEXTS, ReasoningSplitter

HARMONY = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
BITS = st.sampled_from(["<", "<th", "think>", "</", " ", "\n", "a", "b c", "ü"]) | st.sampled_from(
    ["<think>", "</think>", "[THINK]", "[/THINK]", "<|end|>", "<|start|>assistant", *HARMONY]
)
TEXTS = st.lists(BITS, max_size=14).map("".join)
OPENED = st.sampled_from([None, "<think>", "[THINK]", "<|channel|>analysis<|message|>"])


def split(pieces: Iterable[str], opened: str | None = None) -> tuple[str, str]:
    splitter = ReasoningSplitter(opened)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    return (
        "".join(text for kind, text in parts if kind == "reasoning"),
        "".join(text for kind, text in parts if kind == "answer"),
    )


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({c % (len(text) + 1) for c in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def has_no_marker(text: str) -> bool:
    return not any(marker in text for marker in BETWEEN_BLOCKS)


@given(TEXTS, OPENED, st.lists(st.integers(0, 1000), max_size=12))
def test_the_pieces_do_not_matter(text: str, opened: str | None, cuts: list[int]) -> None:
    assert split(pieces_of(text, cuts), opened) == split([text], opened)
    assert split(text, opened) == split([text], opened)


@given(st.text(max_size=30).filter(has_no_marker), st.lists(st.integers(0, 100), max_size=6))
def test_text_without_markers_passes_unchanged(text: str, cuts: list[int]) -> None:
    assert split(pieces_of(text, cuts)) == ("", text)


@given(st.text(min_size=1).filter(lambda text: text[0].isalnum()), st.lists(TEXTS))
def test_nothing_is_held_back_once_the_answer_has_begun(first: str, more: list[str]) -> None:
    splitter = ReasoningSplitter()
    for piece in [first, *filter(None, more)]:
        assert splitter.feed(piece) == [("answer", piece)]
        assert not splitter.wants_markers
    assert splitter.finish() == []


@pytest.mark.parametrize(("opening", "closing"), CLOSING.items())
def test_every_family(opening: str, closing: str) -> None:
    assert split([f"{opening}\nplan it\n{closing}\n\nAnswer"]) == ("plan it", "Answer")
    assert split([f"plan it{closing}Answer"], opening) == ("plan it", "Answer")
    assert split([f"{opening}plan it"]) == ("plan it", "")


def test_a_template_that_opens_the_block() -> None:
    assert split(["plan", " it", "</think>", "\n\n", "Answer"], "<think>") == ("plan it", "Answer")


def test_a_model_that_repeats_the_marker_of_the_prompt() -> None:
    assert split(["<th", "ink>\nplan</think>Answer"], "<think>") == ("plan", "Answer")


def test_an_unclosed_block_is_not_the_answer() -> None:
    assert split(["<think>", "plan it </th"]) == ("plan it </th", "")


def test_a_lone_closing_marker_closes_an_empty_block() -> None:
    assert split(["</think>\n\nAnswer"]) == ("", "Answer")


def test_a_marker_inside_the_answer_is_text() -> None:
    text = "Use <think> and </think>."
    assert split([text]) == ("", text)
    assert split(["<think>x</think>" + text]) == ("x", text)


def test_blocks_one_after_the_other() -> None:
    assert split(["<think>a</think> <think>b</think> c"]) == ("a\n\nb", "c")


def test_harmony_channels() -> None:
    text = "<|channel|>analysis<|message|>Sum.<|end|><|start|>assistant<|channel|>final<|message|>4"
    assert split([text]) == ("Sum.", "4")
    assert split(["<|channel|>final<|message|>4 <b>"]) == ("", "4 <b>")


def test_reasoning_streams_before_the_block_is_closed() -> None:
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>one ") == [("reasoning", "one")]
    assert splitter.feed("two") == [("reasoning", " two")]


def test_no_marker_begins_with_another() -> None:
    assert not [(a, b) for a in BETWEEN_BLOCKS for b in BETWEEN_BLOCKS if a != b and b.startswith(a)]


def test_the_texts_of_marker_tokens() -> None:
    wanted = {
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<|channel|>",
        "<|message|>",
        "<|START_THINKING|>",
    }
    assert wanted <= MARKER_TEXTS
    assert "<|im_end|>" not in MARKER_TEXTS
