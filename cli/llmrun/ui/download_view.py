"""A download on stderr: on a terminal lines that move, else one line a file, begun when the file is."""

from __future__ import annotations

import time
from collections import deque
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from llmrun.reports.download import (
    Downloaded,
    DownloadEvent,
    FileChecked,
    FileDamaged,
    FileDone,
    FileProgress,
    FileRetried,
    FileStarted,
    FileWaiting,
    HubAwaited,
)
from llmrun.ui.bar import bar
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.live import Live

_RATE_OVER_S = 5.0
_TELL_EVERY_S = 30.0
_WIDE, _NARROW, _BAR_CELLS = 72, 50, 20
_VERIFIED = {"sha256": "SHA-256 verified", "git": "digest verified", "size": "here already"}


class Rate:
    """Bytes a second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, received_bytes: int) -> None:
        """So many have come by now, in all; fewer than before begin a new count."""
        if self._seen and received_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, received_bytes))
        while self._seen[0][0] < now_s - _RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """None until there is something to tell it from."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) or None


class DownloadView:
    """Shows the events of a download; `close` before anything else is written."""

    def __init__(self, streams: Streams, *, quiet: bool = False) -> None:
        self._streams, self._quiet = streams, quiet
        self._moving = streams.err_can_redraw
        self._live: Live | None = None
        self._started: FileStarted | None = None
        self._unended = False
        self._announced = False
        self._trouble, self._told_s = "", float("-inf")
        self._last: FileProgress | None = None
        self._rate = Rate()

    def take(self, event: DownloadEvent) -> None:
        """Show what happened."""
        if self._quiet or isinstance(event, Downloaded):
            return
        if isinstance(event, FileStarted):
            self._end_line()
            self._started, self._announced, self._rate, self._trouble = event, False, Rate(), ""
            self._last = None
        elif isinstance(event, FileDone):
            self._result(event.path, f"{format_bytes(event.size_bytes)}, ", _VERIFIED[event.verified])
        elif isinstance(event, FileDamaged):
            self._result(event.path, "", f"damaged, {event.damage}")
        elif self._moving:
            self._move(event)
        else:
            self._tell(event)

    def close(self) -> None:
        """Take the moving lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._end_line()

    def _end_line(self) -> None:
        if self._unended:
            self._unended = False
            self._streams.err.write("\n")
            self._streams.err.flush()

    def _result(self, path: str, extent: str, how: str) -> None:
        """The end of a file's line, or the line where none was begun; what follows is of no file yet."""
        self._started = self._last = None
        if self._unended:
            self._unended = False
            self._line(how)
            return
        self.close()
        self._line(f"{path}: {extent}{how}")

    def _line(self, text: str) -> None:
        self._streams.err.write(f"{one_line(text)}\n")
        self._streams.err.flush()

    def _tell(self, event: DownloadEvent) -> None:
        """Lines for a log: few, however long it takes."""
        started = self._started
        if started is not None and not self._announced:
            self._announced = self._unended = True
            self._streams.err.write(f"{one_line(started.path)}: {_extent(started)} ... ")
            self._streams.err.flush()
        if isinstance(event, FileRetried) and time.monotonic() - self._told_s > _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self.close()
            self._line(_retried(event))

    def _move(self, event: DownloadEvent) -> None:
        from rich.live import Live
        from rich.text import Text

        lines = self._lines(event)
        if not lines:
            return
        if self._live is None:
            self._live = Live(console=self._streams.error_console(), transient=True, auto_refresh=False)
            self._live.start()
        text = Text("\n".join(map(one_line, lines)), overflow="fold")
        self._live.update(text, refresh=True)

    def _lines(self, event: DownloadEvent) -> list[str]:
        columns = get_terminal_size().columns
        match event:
            case FileProgress():
                self._last = event
                return self._progress(event, columns)
            case HubAwaited():
                waiting = f"waiting for {event.host}, {event.waited_s:.0f} s"
                before = self._progress(self._last, columns) if self._last else [self._title(columns)]
                return [line for line in (*before, waiting) if line]
            case FileChecked():
                what = f"checking what is here: {done_of(event.done_bytes, event.kept_bytes)}"
                return [self._title(columns), what]
            case FileWaiting():
                what = f"another program fetches it: {done_of(event.done_bytes, event.size_bytes)}"
                return [self._title(columns), what]
            case FileRetried():
                self._trouble = _retried(event, name=False)
                return [self._title(columns), self._trouble]
        return []

    def _progress(self, event: FileProgress, columns: int) -> list[str]:
        self._rate.add(time.monotonic(), event.received_bytes)
        rate = self._rate.bytes_per_s
        pace = f"{format_bytes(rate)}/s" if rate else ""
        lines = [self._title(columns), _moved(event.done_bytes, event.size_bytes, pace, rate, columns)]
        if event.all_size_bytes > event.size_bytes:
            lines.append("all files")
            lines.append(_moved(event.all_done_bytes, event.all_size_bytes, "", rate, columns))
        if self._trouble:
            lines.append(self._trouble)
            self._trouble = "" if rate else self._trouble
        return lines

    def _title(self, columns: int) -> str:
        started = self._started
        if started is None:
            return ""
        place = f" ({started.index} of {started.count})" if started.count > 1 else ""
        return _shortened(started.path, columns - len(place) - 1) + place


def _extent(started: FileStarted) -> str:
    parts = [format_bytes(started.size_bytes)]
    if started.count > 1:
        parts.append(f"file {started.index} of {started.count}")
    if started.kept_bytes:
        parts.append(f"{format_bytes(started.kept_bytes)} are here")
    return ", ".join(parts)


def _retried(event: FileRetried, *, name: bool = True) -> str:
    start = f"{event.path}: " if name else ""
    goes_on = f"goes on from {format_bytes(event.done_bytes)}" if event.done_bytes else "begins anew"
    wait = f" in {format_seconds(event.wait_s)}" if event.wait_s else ""
    return f"{start}{event.reason}; {goes_on}{wait}"


def _moved(done: int, size: int, pace: str, rate: float | None, columns: int) -> str:
    share = done / size if size else 1.0
    left = f"{_clock((size - done) / rate)} left" if rate and done < size else ""
    words = [f"{share:4.0%}", done_of(done, size), pace, left]
    if columns >= _WIDE:
        words.insert(0, bar(share, _BAR_CELLS))
    elif columns < _NARROW and left:
        words[2] = ""
    return "  ".join(word for word in words if word)


def _clock(time_s: float) -> str:
    """`0:05`, `12:40`, `3:02:10`."""
    minutes, seconds = divmod(max(1, round(time_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def done_of(done: int, size: int) -> str:
    """`1.20 of 4.58 GiB`: the unit once where both have it."""
    first, last = format_bytes(done), format_bytes(size)
    number, _, unit = first.partition(" ")
    return f"{number} of {last}" if last.endswith(f" {unit}") else f"{first} of {last}"


def _shortened(path: str, columns: int) -> str:
    """The end of a name tells more than its beginning."""
    return path if len(path) <= columns else "…" + path[len(path) - max(1, columns - 1) :]
