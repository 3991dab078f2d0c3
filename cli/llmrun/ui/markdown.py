"""Markdown styled as it streams: characters pass unchanged and in order, only SGR styles are added.

Styles follow CommonMark where text that cannot be taken back allows it. A line's kind is decided by its first
characters. A delimiter that may open a span is held until its partner comes, the line ends, or `HOLD_LIMIT`
characters have followed; without a partner it is plain text. Spans therefore never cross lines. Every
decision depends on the text alone, never on where the pieces were cut.

https://spec.commonmark.org/0.31.2/ (flanking rules simplified: delimiters inside words are text, except
`**` next to scripts written without spaces)
"""

from __future__ import annotations

import re
from typing import Literal

HOLD_LIMIT = 200
"""Most characters held back while a span or the kind of a line is undecided."""

STRONG, EMPHASIS, CODE, SUBTLE = "1", "3", "36", "2"
_SPAN_STYLE = {1: EMPHASIS, 2: STRONG, 3: f"{STRONG};{EMPHASIS}"}

Run = tuple[str, str]
"""SGR parameters ("" for none) and text."""

_Mode = Literal["start", "line", "rest"]
_Decision = tuple[list[Run], int]
"""Styled runs and how many characters they take."""

_FENCE_BEGUN = re.compile(r"[ \t]*(`{0,2}|~{0,2})")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING_BEGUN = re.compile(r" {0,3}#{1,6}")
_HEADING = re.compile(r" {0,3}#{1,6}(?=[ \t\r]|$)")
_RULE_BEGUN = re.compile(r" {0,3}([-*_])(?:[ \t]*\1)*[ \t]*\r?")
_RULE = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*\r?")
_QUOTE = re.compile(r" {0,3}>")
_ITEM_BEGUN = re.compile(r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)]?)")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])(?=[ \t\r]|$)")
_PLAIN = re.compile(r"[^\\`*_\n]+")
_SPECIAL_RUN = re.compile(r"\\|`+|\*+|_+")
_TICKS = re.compile(r"`+")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_FIRST_UNSPACED_SCRIPT = "\u2e80"  # from here on: CJK, kana, hangul
_NONE = -1


class MarkdownStyler:
    """Takes text in pieces of any size and gives it back in styled runs, late by what is undecided."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._held = ""
        self._mode: _Mode = "start"
        self._rest_style = ""
        self._fence = ""
        self._previous = "\n"

    def feed(self, text: str) -> list[Run]:
        """The runs that are final now."""
        return self._drain(self._held + text, final=False)

    def finish(self) -> list[Run]:
        """What was held back. The next text begins a new document."""
        runs = self._drain(self._held, final=True)
        self._reset()
        return runs

    def _drain(self, text: str, *, final: bool) -> list[Run]:
        runs: list[Run] = []
        at = 0
        while at < len(text):
            decision = self._decide(text, at, final)
            if decision is None:
                break
            new, count = decision
            for style, part in new:
                if runs and runs[-1][0] == style:
                    runs[-1] = (style, runs[-1][1] + part)
                elif part:
                    runs.append((style, part))
            at += count
            if count:
                self._previous = text[at - 1]
        self._held = text[at:]
        return runs

    def _decide(self, text: str, at: int, final: bool) -> _Decision | None:
        """What comes next at `at`; None if that needs more text."""
        if self._mode == "rest":
            return self._rest(text, at)
        if self._mode == "line":
            if text[at] == "\n":
                self._mode = "start"
                return [("", "\n")], 1
            plain = _PLAIN.match(text, at)
            if plain:
                return [("", plain[0])], plain.end() - at
        line, complete = _window(text, at, final)
        if self._mode == "line":
            return _span(line, 0, complete, self._previous, "")
        return self._code_line(line, complete) if self._fence else self._line_start(line, complete)

    def _rest(self, text: str, at: int) -> _Decision:
        """The line goes on in one style up to its end."""
        end = text.find("\n", at) + 1
        if end:
            self._mode = "start"
        part = text[at : end or len(text)]
        return [(self._rest_style, part)], len(part)

    def _enter_rest(self, style: str) -> _Decision:
        self._mode, self._rest_style = "rest", style
        return [], 0

    def _code_line(self, line: str, complete: bool) -> _Decision | None:
        """A line in a code block: its end, or code."""
        bare = line.strip(" \t\r")
        if not bare.strip(self._fence[0]):
            if not complete:
                return None
            if len(bare) >= len(self._fence):
                self._fence = ""
                return self._enter_rest(SUBTLE)
        return self._enter_rest(CODE)

    def _line_start(self, line: str, complete: bool) -> _Decision | None:
        if not complete and any(
            begun.fullmatch(line) for begun in (_FENCE_BEGUN, _HEADING_BEGUN, _RULE_BEGUN, _ITEM_BEGUN)
        ):
            return None
        if fence := _FENCE.match(line):
            opens = _opens_fence(line, fence, complete)
            if opens is None:
                return None
            if opens:
                self._fence = fence[1]
                return self._enter_rest(SUBTLE)
        if _HEADING.match(line):
            return self._enter_rest(STRONG)
        if _RULE.fullmatch(line):
            return self._enter_rest(SUBTLE)
        if marker := _QUOTE.match(line) or _ITEM.match(line):
            return [(SUBTLE, marker[0])], marker.end()
        self._mode = "line"
        return [], 0


def _window(text: str, at: int, final: bool) -> tuple[str, bool]:
    """What a decision may look at: the line from `at`, and whether no more of it is waited for."""
    window = text[at : at + HOLD_LIMIT]
    end = window.find("\n")
    if end >= 0:
        return window[:end], True
    return window, final or len(window) == HOLD_LIMIT


def _opens_fence(line: str, fence: re.Match[str], complete: bool) -> bool | None:
    """Whether the run of three or more opens a code block; backticks do unless one follows on the line."""
    if fence.end() == len(line) and not complete:
        return None
    if fence[1][0] == "~":
        return True
    if "`" in line[fence.end() :]:
        return False
    return True if complete else None


def _span(text: str, at: int, complete: bool, previous: str, style: str) -> _Decision | None:
    """The span that begins at the special character at `at`, or that character run as plain text.

    `text` ends where the line or the window does; None if more of it is needed.
    """
    char = text[at]
    if char == "\\":
        if at + 1 == len(text) and not complete:
            return None
        escaped = text[at : at + 2] if text[at + 1 : at + 2] in _PUNCTUATION else char
        return [(style, escaped)], len(escaped)
    end = _code_end(text, at, complete) if char == "`" else _emphasis_end(text, at, complete, previous)
    if end is None:
        return None
    mark = text[at : _run_end(text, at)]
    if end == _NONE:
        return [(style, mark)], len(mark)
    if char == "`":
        return [(_joined(style, CODE), text[at:end])], end - at
    style = _joined(style, _SPAN_STYLE[len(mark)])
    inner = _inline(text[at + len(mark) : end - len(mark)], style)
    return [(style, mark), *inner, (style, text[end - len(mark) : end])], end - at


def _inline(text: str, style: str) -> list[Run]:
    """The runs of a span's inside, all of which is there."""
    runs: list[Run] = []
    at = 0
    previous = " "
    while at < len(text):
        plain = _PLAIN.match(text, at)
        if plain:
            runs.append((style, plain[0]))
            at = plain.end()
        else:
            decision = _span(text, at, True, previous, style)
            assert decision is not None, "complete text leaves nothing open"
            runs += decision[0]
            at += decision[1]
        previous = text[at - 1]
    return runs


def _code_end(text: str, at: int, complete: bool) -> int | None:
    """End of the code span whose backticks stand at `at`: behind the next run of the same length."""
    ticks = _run_end(text, at) - at
    for found in _TICKS.finditer(text, at + ticks):
        grows = found.end() == len(text) and not complete
        if len(found[0]) == ticks and not grows:
            return found.end()
    return _NONE if complete else None


def _emphasis_end(text: str, at: int, complete: bool, previous: str) -> int | None:
    """End of the emphasis whose delimiters stand at `at`; `_NONE` where they are plain text."""
    char, begin = text[at], _run_end(text, at)
    count = begin - at
    if begin == len(text):
        return _NONE if complete else None
    spaced_only = char == "_" or count == 1
    if count > 3 or text[begin].isspace() or (_in_word(previous) and (spaced_only or _in_word(text[begin]))):
        return _NONE
    while found := _SPECIAL_RUN.search(text, begin):
        begin = found.end()
        if begin == len(text) and not complete:
            return None
        if found[0] == "\\":
            begin += text[begin : begin + 1] in _PUNCTUATION and begin < len(text)
        elif found[0][0] == "`":
            end = _code_end(text, found.start(), complete)
            if end is None:
                return None
            begin = max(begin, end)
        elif found[0][0] == char and len(found[0]) in (count, 3):
            inside_word = spaced_only and _in_word(text[begin : begin + 1])
            if not text[found.start() - 1].isspace() and not inside_word:
                return begin
    return _NONE if complete else None


def _run_end(text: str, at: int) -> int:
    """Behind the run of equal characters at `at`."""
    end = at + 1
    while end < len(text) and text[end] == text[at]:
        end += 1
    return end


def _in_word(char: str) -> bool:
    return char.isalnum() and char < _FIRST_UNSPACED_SCRIPT


def _joined(outer: str, inner: str) -> str:
    return f"{outer};{inner}" if outer else inner
