"""Why a prompt was not served from cache, in words."""

from __future__ import annotations

import pytest

from llmrun.app.prefixes.reasons import Missed, difference, miss_reason
from llmrun.prefix.reuse import MemoryKind

FULL, WINDOW, RECURRENT = MemoryKind(), MemoryKind(n_swa=8), MemoryKind(recurrent=True)


def piece(token: int) -> bytes:
    return bytes([token])


def tokens(text: str) -> list[int]:
    return list(text.encode())


def reason(missed: Missed, kind: MemoryKind = FULL) -> str:
    return miss_reason(missed, difference(missed, piece), kind)


PROMPT = tokens("Once upon a time")


@pytest.mark.parametrize(
    ("missed", "kind", "words"),
    [
        (Missed(PROMPT, 0), FULL, "nothing stored"),
        (Missed(PROMPT, 0, off=True), FULL, "the prefix cache is off"),
        (Missed(PROMPT, 0, tokens("Twice"), 0), FULL, 'differs from token 1 ("Twice" against "Once upon a "'),
        (Missed(PROMPT, 0, tokens("Once more"), 5), WINDOW, "the sliding window has passed token 5"),
        (Missed(PROMPT, 0, tokens("Once more"), 5), RECURRENT, "the model's state cannot go back to token 5"),
        (Missed(PROMPT, 0, other_settings="n_ctx was 1, is 2"), FULL, "settings changed: n_ctx was 1, is 2"),
        (Missed(PROMPT, 0, damaged=True), FULL, "state damaged"),
        (
            Missed(PROMPT, 5, tokens("Once more"), 5, rewritten=True),
            FULL,
            "template rewrote history: differs ",
        ),
        (Missed(PROMPT, 5, tokens("Once more"), 5), FULL, ""),
        (Missed(PROMPT, 5, tokens("Once more"), 5, damaged=True), FULL, ""),
        (Missed(PROMPT[:1], 0, PROMPT, 1), FULL, "one token is always evaluated"),
    ],
)
def test_reasons(missed: Missed, kind: MemoryKind, words: str) -> None:
    told = reason(missed, kind)
    assert told.startswith(words)
    assert bool(told) == bool(words)


def test_the_texts_around_the_first_difference() -> None:
    found = difference(Missed(PROMPT, 0, tokens("Once upon the hill"), 10), piece)
    assert found is not None
    assert (found.token, found.before) == (10, "Once upon ")
    assert (found.stored, found.prompt) == ("the hill", "a time")


def test_one_that_goes_on_after_the_other_does_not_differ() -> None:
    assert difference(Missed(PROMPT, 0, PROMPT[:4], 4), piece) is None
    assert difference(Missed(PROMPT[:4], 0, PROMPT, 4), piece) is None
    assert difference(Missed(PROMPT, 0), piece) is None


def test_no_text_of_a_prompt_moves_the_cursor() -> None:
    found = difference(Missed(tokens("a\x1b[2J\n"), 0, [*tokens("a\r\x07é"), 0xFF], 1), piece)
    assert found is not None
    assert found.prompt.isprintable()
    assert found.stored.isprintable()
    assert reason(Missed(tokens("\x1b[2J"), 0, tokens("\r\x07"), 0)).isprintable()
