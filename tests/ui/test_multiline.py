from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.ui.multiline import (
    block_is_open,
    block_message,
    ends_in_backslash,
    opens_block,
    without_backslash,
)


@pytest.mark.parametrize(
    ("text", "asks"),
    [("a\\", True), ("a\\\\", False), ("\\\\\\", True), ("a", False), ("", False), ("\\ ", False)],
)
def test_an_odd_number_of_backslashes_asks_for_a_line(text: str, asks: bool) -> None:
    assert ends_in_backslash(text) is asks


@given(st.text())
def test_a_backslash_goes_away_alone(text: str) -> None:
    if not ends_in_backslash(text):
        assert without_backslash(text + "\\") == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"""one"""', "one"),
        ('"""\none\n\n  two\n"""', "one\n\n  two"),
        ('"""one\ntwo"""  ', "one\ntwo"),
        ('""""""', ""),
        ('"""a """ b"""', 'a """ b'),
        ('/system """\none\ntwo\n"""', "/system one\ntwo"),
    ],
)
def test_a_block_is_what_stands_between_the_quotes(text: str, message: str) -> None:
    assert opens_block(text)
    assert not block_is_open(text)
    assert block_message(text) == message


@pytest.mark.parametrize("text", ['"""', '"""one', '"""one\n', '""""', '"""a""" b', '/system """x'])
def test_a_block_without_quotes_at_the_end_is_open(text: str) -> None:
    assert opens_block(text)
    assert block_is_open(text)


@pytest.mark.parametrize("text", ["", '""', 'say """x"""', ' """x"""', '/usr/bin """'])
def test_other_text_is_no_block(text: str) -> None:
    assert not opens_block(text)


@given(st.text().filter(lambda text: not text.endswith('"') and "\\" not in text))
def test_any_text_can_be_sent_in_a_block(text: str) -> None:
    block = f'"""\n{text}\n"""'
    assert not block_is_open(block)
    assert block_message(block) == text
