from __future__ import annotations

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from llmrun.ui.live import LiveText

from tests.support.screen import resize, shown_lines


class Terminal:
    """A screen with history that takes what `LiveText` writes."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.001)
        self.stream = pyte.Stream(self.screen)
        self.columns, self.rows = columns, rows
        self.written = 0

    def write(self, text: str) -> None:
        self.written += len(text)
        text = text.replace("\x1b[?2026h", "").replace("\x1b[?2026l", "").replace("\n", "\r\n")
        for char in text:
            # pyte puts half of a wide character into the last column; terminals wrap it
            if cell_len(char) == 2 and self.screen.cursor.x == self.columns - 1:
                self.stream.feed("\r\n")
            self.stream.feed(char)
        # a terminal in its usual mode turns LF into CR LF; pyte does not know synchronized output

    def size(self) -> tuple[int, int]:
        return self.columns, self.rows

    def resize(self, columns: int, rows: int) -> None:
        resize(self.screen, columns, rows)
        self.columns, self.rows = columns, rows

    def lines(self) -> list[str]:
        return shown_lines(self.screen)


def wrapped(text: str, columns: int) -> list[str]:
    """What a terminal shows of plain text."""
    terminal = Terminal(columns, 24)
    terminal.write(text)
    return strip_end(terminal.lines())


def strip_end(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


def pieces(text: str, sizes: list[int]) -> list[str]:
    out, at = [], 0
    for size in sizes:
        out.append(text[at : at + size])
        at += size
    return [*out, text[at:]]


BLOCK = ["+--------+", "| panel  |", "+--------+"]
TEXTS = st.text(st.sampled_from("ab cde\n日本\u0301xyzé—"), max_size=400)


@settings(max_examples=60, deadline=None)
@example("aaaaaaaa日日", [], (11, 6))
@given(TEXTS, st.lists(st.integers(0, 9), max_size=80), st.sampled_from([(80, 24), (40, 10), (11, 6)]))
def test_scrollback_is_the_plain_text_whatever_the_pieces(
    text: str, sizes: list[int], size: tuple[int, int]
) -> None:
    columns, rows = size
    terminal = Terminal(columns, rows)
    live = LiveText(terminal.write, terminal.size)
    for count, piece in enumerate(pieces(text, sizes)):
        live.append(piece)
        live.set_block([*BLOCK[:2], f"n={count}"])
        live.flush()
    live.close()
    assert strip_end(terminal.lines()) == wrapped(text, columns)


def test_the_block_stands_under_the_text() -> None:
    terminal = Terminal(20, 8)
    live = LiveText(terminal.write, terminal.size)
    live.append("Hello")
    live.set_block(BLOCK)
    live.flush()
    assert strip_end(terminal.lines()) == ["Hello", *BLOCK]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (5, 0)


def test_an_answer_longer_than_the_screen_scrolls_once() -> None:
    terminal = Terminal(30, 6)
    live = LiveText(terminal.write, terminal.size)
    text = "".join(f"line {i} 日本語\n" for i in range(60))
    for piece in pieces(text, [7] * 100):
        live.append(piece)
        live.set_block(BLOCK)
        live.flush()
    assert strip_end(terminal.lines())[-3:] == BLOCK
    live.close()
    assert strip_end(terminal.lines()) == wrapped(text, 30)


@pytest.mark.parametrize("sizes", [[(40, 12), (20, 8)], [(20, 8), (60, 20)], [(30, 10), (30, 4)]])
def test_a_resize_while_streaming_loses_and_doubles_nothing(sizes: list[tuple[int, int]]) -> None:
    terminal = Terminal(*sizes[0])
    live = LiveText(terminal.write, terminal.size)
    for part, size in enumerate(sizes):
        if part:
            terminal.resize(*size)
        for number in range(12):
            live.append(f"part {part} {number}\n")
            live.set_block(BLOCK)
            live.flush()
    live.close()
    seen = [line for line in terminal.lines() if line]
    assert seen == [line for line in seen if line.startswith("part")]
    assert len(seen) == len(set(seen))
    assert [line for line in seen if line.startswith("part 1")] == [f"part 1 {i}" for i in range(12)]


def test_a_block_for_a_wider_terminal_is_left_out_until_it_is_laid_out_again() -> None:
    terminal = Terminal(40, 12)
    live = LiveText(terminal.write, terminal.size)
    live.append("Hello")
    live.set_block(["wide " * 7] * 3)
    live.flush()
    terminal.resize(20, 12)
    live.append(" you")
    live.flush()
    assert strip_end(terminal.lines()) == ["Hello you"]
    live.append("\n")
    live.set_block(BLOCK)
    live.flush()
    assert strip_end(terminal.lines()) == ["Hello you", "", *BLOCK]


def test_a_frame_costs_the_same_however_long_the_text_is() -> None:
    terminal = Terminal(40, 10)
    live = LiveText(terminal.write, terminal.size)
    costs = []
    for _ in range(200):
        before = terminal.written
        live.append("words \n")
        live.set_block(BLOCK)
        live.flush()
        costs.append(terminal.written - before)
    assert max(costs[2:]) == min(costs[2:])


def test_a_terminal_of_two_rows_gets_the_text_alone() -> None:
    terminal = Terminal(20, 2)
    live = LiveText(terminal.write, terminal.size)
    live.append("one\ntwo")
    live.set_block(BLOCK)
    live.flush()
    live.close()
    assert strip_end(terminal.lines()) == ["one", "two"]


@given(st.text(st.sampled_from("a日\u0301"), min_size=1, max_size=40), st.integers(2, 9))
def test_the_cursor_never_waits_behind_the_last_column_under_a_block(text: str, columns: int) -> None:
    terminal = Terminal(columns, 20)
    live = LiveText(terminal.write, terminal.size)
    live.append(text, "2")
    live.set_block(["p"])
    live.flush()
    assert terminal.screen.cursor.x < columns or cell_len(text) < columns
