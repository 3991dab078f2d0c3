"""Text that only grows, with a block of lines that lives underneath it.

Text goes to the terminal once and is never written again: the terminal itself wraps it and scrolls it into
its history, so copying gives back the model's own lines. The cursor rests where the text ends. To draw the
block, room is made below by IND (which scrolls without leaving the column), the cursor is saved, the block's
lines are written, and the cursor is restored; whatever comes next first erases from the cursor to the end of
the screen. No position is remembered across draws, so a resize or a character of surprising width can at
worst leave a ragged edge until the next draw.

After a change of width in the middle of a line nobody but the terminal knows where that line ends now, so
the block stays away until the next line begins.

One position cannot be restored: a cursor waiting behind the last column, where the next character would
wrap. The character that would cause it is held back until another one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len

ERASE_BELOW = "\x1b[J"
_INDEX, _SAVE, _RESTORE, _NEXT_ROW = "\x1bD", "\x1b7", "\x1b8", "\r\x1b[1B"
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output; unknown modes are ignored
_TAB = 8

Run = tuple[str, str]
"""SGR parameters ("" for none) and text."""

Size = Callable[[], tuple[int, int]]
"""Columns and rows of the terminal now."""


def advance(column: int, text: str, columns: int) -> int:
    """Column after writing `text` at `column`; `columns` itself means that the next character wraps."""
    for char in text:
        if char == "\n":
            column = 0
        elif char == "\t":
            column = min((column // _TAB + 1) * _TAB, columns - 1)
        else:
            width = cell_len(char)
            column = column + width if column + width <= columns else width
    return column


class LiveText:
    """Growing text and a live block on one terminal; `write` takes what goes to it."""

    def __init__(self, write: Callable[[str], None], size: Size) -> None:
        self._write = write
        self._size = size
        self._line = ""
        self._pending: list[Run] = []
        self._block: Sequence[str] = ()
        self._block_columns = 0
        self._block_drawn = False
        self._columns = 0
        self._adrift = False  # the width changed in this line: where it wraps is not known

    def append(self, text: str, style: str = "") -> None:
        """Add text in an SGR style such as "2" for dim; it shows at the next `flush`."""
        self._pending.append((style, text))

    def set_block(self, lines: Sequence[str]) -> None:
        """Replace the live block; each line must fit the terminal's width. It shows at the next `flush`.

        Once the terminal has become narrower it is left out until it is set again: lines that wrap would
        scroll the text away from where the cursor returns to.
        """
        self._block = lines
        self._block_columns, _ = self._size()

    def flush(self) -> None:
        """Bring the terminal up to date in one write."""
        columns, rows = self._size()
        self._adrift |= columns != self._columns and bool(self._line)
        self._columns = columns
        runs, self._pending = self._split_held(self._pending, columns)
        frame = [_BEGIN_FRAME, ERASE_BELOW if self._block_drawn else "", self._take(runs)]
        fits = columns >= self._block_columns and not self._adrift
        block = self._block[: max(0, rows - 2)] if fits else ()
        if block:
            frame += [_INDEX * len(block), f"\x1b[{len(block)}A", _SAVE]
            frame += [_NEXT_ROW + line for line in block]
            frame.append(_RESTORE)
        self._block_drawn = bool(block)
        self._write("".join([*frame, _END_FRAME]))

    def close(self) -> None:
        """Take the block away and write what was held back; the text stays, the cursor at its end."""
        erase = ERASE_BELOW if self._block_drawn else ""
        rest, self._pending = self._pending, []
        if erase or rest:
            self._write(erase + self._take(rest))
        self._block, self._block_drawn = (), False

    @property
    def at_line_start(self) -> bool:
        """True when the text so far ends with a line feed, or there is none."""
        return not self._line and not self._pending

    def _take(self, runs: Sequence[Run]) -> str:
        """What to write for `runs`, which now count as written."""
        written = "".join(text for _, text in runs)
        if "\n" in written:
            self._adrift = False
        self._line = (self._line + written).rsplit("\n", 1)[-1]
        return "".join(f"\x1b[{style}m{text}\x1b[0m" if style else text for style, text in runs)

    def _split_held(self, runs: Sequence[Run], columns: int) -> tuple[list[Run], list[Run]]:
        """What may be written now, and the last character where it would reach the last column."""
        text = "".join(part for _, part in runs)
        if self._adrift and "\n" not in text:
            return list(runs), []
        if not text or advance(advance(0, self._line, columns) % columns, text, columns) < columns:
            return list(runs), []
        cut = len(text) - 1
        while cut > 0 and cell_len(text[cut]) == 0:  # a mark shares the cell of the character before it
            cut -= 1
        written: list[Run] = []
        held: list[Run] = []
        for style, part in runs:
            written.append((style, part[:cut]))
            held.append((style, part[cut:]))
            cut = max(0, cut - len(part))
        return [run for run in written if run[1]], [run for run in held if run[1]]
