"""Stop strings: the earliest match ends the text, whatever the pieces and the order of the stops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.chat.stop import StopMatcher
from llmrun.errors import UsageError

TEXTS = st.text(alphabet="ab-", max_size=40)
STOPS = st.lists(st.text(alphabet="ab-", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: Sequence[str]) -> str:
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places, default=len(text))]


def stream(pieces: Sequence[str], stops: Sequence[str]) -> str:
    matcher = StopMatcher(stops)
    shown = []
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        shown.append(text)
        if stopped:
            break
    return "".join(shown) + matcher.finish()


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({c % (len(text) + 1) for c in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 1000), max_size=12))
def test_streaming_cuts_where_the_whole_text_would_be_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    assert stream(pieces_of(text, cuts), stops) == cut(text, stops)


@given(TEXTS, STOPS)
def test_what_is_held_back_may_still_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.feed(character)[0] for character in text)
    held = cut(text, stops)[len(shown) :]
    assert len(held) < max(map(len, stops), default=1)
    if not any(stop in text for stop in stops):
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        (["gamma"], "alpha beta "),
        (["gamma delta"], "alpha beta "),
        (["gammaX"], "alpha beta gamma delta END"),
        (["END", "gamma"], "alpha beta "),
        (["gamma", "END"], "alpha beta "),
        ([], "alpha beta gamma delta END"),
    ],
)
def test_a_stop_string_across_tokens(stops: list[str], shown: str) -> None:
    assert stream(["alpha ", "beta ", "gam", "ma de", "lta ", "END"], stops) == shown


def test_a_match_waits_for_an_earlier_one_that_is_not_complete() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    assert matcher.feed("xabc") == ("x", False)
    assert matcher.feed("d") == ("", True)

    matcher = StopMatcher(["bc", "abcd"])
    matcher.feed("xabc")
    assert matcher.feed("e") == ("a", True)
    assert matcher.stopped


def test_a_match_that_was_waiting_counts_at_the_end() -> None:
    matcher = StopMatcher(["bc", "abcd"])
    matcher.feed("xabc")
    assert matcher.finish() == "a"
    assert matcher.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError):
        StopMatcher(["x", ""])
