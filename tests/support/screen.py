"""What pyte leaves to be said about terminals: how they resize, and what they show of plain text."""

from __future__ import annotations

import unicodedata
from copy import copy

import pyte


def resize(screen: pyte.HistoryScreen, columns: int, lines: int) -> None:
    """As tmux does it: rows under the cursor go first, then the top ones move into the history.

    (pyte's own resize drops the top rows and leaves the cursor where it was.)
    """
    below = screen.lines - 1 - screen.cursor.y
    scroll = max(0, screen.lines - lines - below)
    screen.history.top.extend(copy(screen.buffer[y]) for y in range(scroll))
    kept = {y - scroll: line for y, line in screen.buffer.items() if scroll <= y < scroll + lines}
    screen.buffer.clear()
    screen.buffer.update(kept)
    screen.lines, screen.columns = lines, columns
    screen.cursor.y -= scroll
    screen.cursor.x = min(screen.cursor.x, columns - 1)
    screen.dirty.update(range(lines))


def shown_lines(screen: pyte.HistoryScreen) -> list[str]:
    """Lines of scrollback and screen, blanks at the end stripped."""
    lines = [*screen.history.top, *(screen.buffer[y] for y in range(screen.lines))]
    return ["".join(line[x].data for x in range(max(line, default=-1) + 1)).rstrip() for line in lines]


def lines_of_plain(text: str, columns: int) -> list[str]:
    """The lines a terminal shows of `text`, without empty ones at the end."""
    screen = pyte.HistoryScreen(columns, 24, history=10_000, ratio=0.001)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    lines = shown_lines(screen)
    while lines and not lines[-1]:
        lines.pop()
    return [unicodedata.normalize("NFC", line) for line in lines]
