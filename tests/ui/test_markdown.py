from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmrun.ui.markdown import CODE, EMPHASIS, HOLD_LIMIT, STRONG, SUBTLE, MarkdownStyler

PIECES = st.one_of(
    st.sampled_from(
        [
            "*",
            "**",
            "***",
            "_",
            "__",
            "`",
            "``",
            "```",
            "~~~",
            "\\",
            "\n",
            " ",
            "#",
            "# ",
            "> ",
            "- ",
            "1. ",
            "a",
        ]
    ),
    st.sampled_from(["bold", "日本", "é", "x1", "\t", "\r\n", "***\n", "```py\n", "```\n", "(", ".", "    "]),
    st.integers(1, HOLD_LIMIT + 2).map(lambda n: "z" * n),
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)


def styled(text: str, sizes: list[int]) -> list[str]:
    """The style of each character when the text comes in pieces of these sizes."""
    styler = MarkdownStyler()
    runs = []
    at = 0
    for size in sizes:
        runs += styler.feed(text[at : at + size])
        at += size
    runs += styler.feed(text[at:])
    runs += styler.finish()
    assert "".join(part for _, part in runs) == text
    return [style for style, part in runs for _ in part]


def marked(text: str) -> dict[str, str]:
    """Stretches that are styled -> their style."""
    styler = MarkdownStyler()
    runs = [*styler.feed(text), *styler.finish()]
    found: list[tuple[str, str]] = []
    for style, part in runs:
        if found and found[-1][0] == style:
            found[-1] = (style, found[-1][1] + part)
        else:
            found.append((style, part))
    return {part: style for style, part in found if style}


@settings(max_examples=400, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 7), max_size=60))
@example("*a `b* c", [7])
@example("```a`\n```\n", [3, 1, 1])
@example("**a *b***c", [8, 1])
@example("* * *", [1, 1, 1, 1])
@example("~~~~\n~~~\nx", [3])
def test_text_is_unchanged_and_styles_do_not_depend_on_the_pieces(text: str, sizes: list[int]) -> None:
    assert styled(text, sizes) == styled(text, []) == styled(text, [1] * len(text))


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_nothing_is_held_beyond_the_limit_or_a_finished_line(text: str) -> None:
    styler = MarkdownStyler()
    given_out = 0
    for count, char in enumerate(text, 1):
        given_out += sum(len(part) for _, part in styler.feed(char))
        held = text[given_out:count]
        assert len(held) <= HOLD_LIMIT
        assert "\n" not in held


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\nbody", {"# Title\n": STRONG}),
        ("a **bold** word", {"**bold**": STRONG}),
        ("a __bold__ word", {"__bold__": STRONG}),
        ("an *important* word", {"*important*": EMPHASIS}),
        ("an _important_ word", {"_important_": EMPHASIS}),
        ("***both***", {"***both***": f"{STRONG};{EMPHASIS}"}),
        ("call `f(*a, **k)` now", {"`f(*a, **k)`": CODE}),
        ("``a ` b`` c", {"``a ` b``": CODE}),
        ("**a *b***", {"**a ": STRONG, "*b*": f"{STRONG};{EMPHASIS}", "**": STRONG}),
        ("**use `x` here**", {"**use ": STRONG, "`x`": f"{STRONG};{CODE}", " here**": STRONG}),
        ("这是**重点**内容", {"**重点**": STRONG}),
        ("这是*重点*内容", {"*重点*": EMPHASIS}),
        ("- item\n  * sub", {"-": SUBTLE, "  *": SUBTLE}),
        ("12. item *x*", {"12.": SUBTLE, "*x*": EMPHASIS}),
        ("> quoted **x**", {">": SUBTLE, "**x**": STRONG}),
        ("---\n", {"---\n": SUBTLE}),
        ("* * *\n", {"* * *\n": SUBTLE}),
    ],
)
def test_markup_is_styled(text: str, expected: dict[str, str]) -> None:
    assert marked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4 and 2 * 3 * 4 and a**b**c",
        "snake_case_name and __init",
        r"\*not\* \`code\` \_either\_",
        "an *opener without its partner",
        "*opened\nclosed*",
        "`opened\nclosed`",
        "#hashtag and #######",
        "1.5 times, -5 degrees, +1",
        "**kwargs and **more",
        "<tag> a > b",
        "****four****",
    ],
)
def test_what_only_looks_like_markup_is_text(text: str) -> None:
    assert marked(text) == {}


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_code_block_styles_nothing_inside(fence: str) -> None:
    code = "# no heading\n**p = *q\n  ``\n- x `y`\n"
    assert marked(f"{fence}c title\n{code}{fence}\n**after**") == {
        f"{fence}c title\n": SUBTLE,
        code: CODE,
        f"{fence}\n": SUBTLE,
        "**after**": STRONG,
    }


def test_a_block_in_a_list_item_is_a_block() -> None:
    assert marked("1. do\n   ```sh\n   ls *\n   ```\nthen *x*") == {
        "1.": SUBTLE,
        "   ```sh\n": SUBTLE,
        "   ls *\n": CODE,
        "   ```\n": SUBTLE,
        "*x*": EMPHASIS,
    }


def test_a_longer_fence_is_not_closed_by_a_shorter_one() -> None:
    text = "````md\n```\n````\n"
    assert marked(text)["```\n"] == CODE


def test_backticks_on_one_line_are_a_code_span() -> None:
    assert marked("```x``` is code\n*y*") == {"```x```": CODE, "*y*": EMPHASIS}


def test_plain_text_and_code_pass_at_once() -> None:
    styler = MarkdownStyler()
    assert styler.feed("Hello wor") == [("", "Hello wor")]
    assert styler.feed("ld\n```py\nx = ") == [("", "ld\n"), (SUBTLE, "```py\n"), (CODE, "x = ")]
    assert styler.feed("1") == [(CODE, "1")]


def test_an_opener_is_released_when_its_line_ends() -> None:
    styler = MarkdownStyler()
    assert styler.feed("see *foo") == [("", "see ")]
    assert styler.feed(" bar\n") == [("", "*foo bar\n")]


def test_after_the_end_a_new_document_begins() -> None:
    styler = MarkdownStyler()
    styler.feed("```\ncode")
    styler.finish()
    assert [*styler.feed("*x*"), *styler.finish()] == [(EMPHASIS, "*x*")]
