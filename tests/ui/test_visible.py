"""What a terminal could obey is shown instead; everything else passes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.ui.visible import VisibleStream, one_line, visible

DANGEROUS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n", "\t"}
OVERRIDES = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b]8;;http://x\x1b\\link", "␛]8;;http://x␛\\link"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb", "a␍b"),
        ("a\r\nb", "a\nb"),
        ("\x00\x08\x7f", "␀␈␡"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("tabs\tand\nlines", "tabs\tand\nlines"),
        ("[bold]x[/] :smile:", "[bold]x[/] :smile:"),
        ("日本 🦙 é e\u0301", "日本 🦙 é e\u0301"),
    ],
)
def test_table(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_dangerous_is_left(text: str) -> None:
    assert not set(visible(text)) & (DANGEROUS | OVERRIDES)
    assert not set(one_line(text)) & (DANGEROUS | OVERRIDES | {"\n", "\t"})
    assert visible(visible(text)) == visible(text)


@given(st.lists(st.text("a\r\n\x1b", max_size=3)))
def test_cutting_a_text_changes_nothing(pieces: list[str]) -> None:
    stream = VisibleStream()
    shown = [stream.feed(piece) for piece in pieces]
    assert "".join(shown) + stream.finish() == visible("".join(pieces))


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs"))))
def test_other_text_passes_unchanged(text: str) -> None:
    assert visible(text) == text
    assert all(unicodedata.category(c) != "Cc" for c in one_line(text))
