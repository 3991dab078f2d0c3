"""llama-bench's lists and ranges, checked by a slow reading of its rule."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.bench.lists import MAX_VALUES, parse_layers, parse_numbers, parse_pair, parse_words
from llmrun.errors import UsageError

MOST = 1 << 20


def numbers(*texts: str, least: int = 0) -> tuple[int, ...]:
    return parse_numbers(texts, "-p", least=least, most=MOST)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", (512,)),
        ("512,1024", (512, 1024)),
        ("0", (0,)),
        ("3-5", (3, 4, 5)),
        ("0-8192+1024", tuple(range(0, 8193, 1024))),
        ("64-1024*2", (64, 128, 256, 512, 1024)),
        ("1-1", (1,)),
        ("1-100*10,7,2-4", (1, 10, 100, 7, 2, 3, 4)),
        ("5-8+10", (5,)),
        ("7,7", (7, 7)),
        ("512,", (512,)),
    ],
)
def test_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text) == expected


def test_a_flag_may_be_given_several_times() -> None:
    assert numbers("1,2", "3") == (1, 2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        ",",
        ",1",
        "1,,2",
        "1,,",
        "1-",
        "5-3",
        "1-8*1",
        "0-8*2",
        "1-8+0",
        "1-8/2",
        "1--8",
        "1.5",
        "1 2",
        "-1",
        "٣",
        "2e3",
        "9" * 5000,
        "1-" + "9" * 5000,
    ],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        numbers(text)


def test_bounds_count_for_every_number() -> None:
    with pytest.raises(UsageError):
        numbers("0,1", least=1)
    with pytest.raises(UsageError):
        numbers(f"1,{MOST + 1}")


@pytest.mark.parametrize("text", [f"0-{MOST}", ",".join(["0-9000"] * 2), "1-999999999999999999999"])
def test_lists_have_an_end(text: str) -> None:
    with pytest.raises(UsageError):
        numbers(text)
    assert len(numbers(f"1-{MAX_VALUES}")) == MAX_VALUES


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 50))
def test_steps_reach_no_further_than_the_last(first: int, length: int, step: int) -> None:
    found = numbers(f"{first}-{first + length}+{step}")
    assert found == tuple(n for n in range(first, first + length + 1) if (n - first) % step == 0)


@given(st.integers(1, 100), st.integers(0, 5000), st.integers(2, 9))
def test_factors(first: int, length: int, factor: int) -> None:
    found = numbers(f"{first}-{first + length}*{factor}")
    assert found[0] == first
    assert all(b == a * factor for a, b in pairwise(found))
    assert found[-1] <= first + length < found[-1] * factor


@given(st.text("0123456789-+*, ", max_size=12))
def test_any_text_gives_numbers_or_an_error(text: str) -> None:
    with suppress(UsageError):
        assert all(0 <= number <= MOST for number in numbers(text))


def test_layers_are_words_numbers_and_ranges() -> None:
    assert parse_layers(["0-24+8,all", "auto,-1,3"], "-ngl", most=99) == (
        "0", "8", "16", "24", "all", "auto", "-1", "3",
    )  # fmt: skip
    for text in ("9-1", "1-100"):
        with pytest.raises(UsageError):
            parse_layers([text], "-ngl", most=99)


def test_words_and_pairs() -> None:
    assert parse_words(["f16, q8_0,", "f32"], "-ctk") == ("f16", "q8_0", "f32")
    for text in ("", ",", "f16,,f32"):
        with pytest.raises(UsageError):
            parse_words([text], "-ctk")
    assert parse_pair("512,128", "-pg", most=MOST) == (512, 128)
    for text in ("512", "1,2,3", "0,0", "a,b"):
        with pytest.raises(UsageError):
            parse_pair(text, "-pg", most=MOST)
