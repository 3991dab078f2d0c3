"""Progress of loading and prefill: one line on stderr that goes away, shown only when the wait is felt.

Drawn from the event loop, never by a thread of its own: a redraw in the background would disturb what is
being timed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmrun.ui.streams import Streams
from llmrun.units import format_count, format_rate, format_seconds, format_tokens

if TYPE_CHECKING:
    from rich.progress import Progress

FELT_S = 0.3
_REDRAW_S = 0.1


def prefill_detail(done: int, total: int, elapsed_s: float) -> str:
    """Tokens evaluated, and once there are some, the rate and the time left."""
    detail = f"{format_count(done)} of {format_tokens(total)}"
    if not done or elapsed_s <= 0:
        return detail
    rate = done / elapsed_s
    return f"{detail}  {format_rate(rate)}  {format_seconds((total - done) / rate)} left"


class PhaseProgress:
    """A transient bar; `clear` before anything else is written."""

    def __init__(self, streams: Streams, *, enabled: bool) -> None:
        self._streams = streams
        self._enabled = enabled and streams.err_can_redraw
        self._phase_began_s = time.monotonic()
        self._drawn_s = 0.0
        self._bar: Progress | None = None

    def loading(self, fraction: float) -> None:
        """`fraction` of the weights are read."""
        self._update("loading", fraction, "")

    def prefill(self, done: int, total: int, elapsed_s: float) -> None:
        """`done` of `total` prompt tokens are evaluated after `elapsed_s`."""
        if done == 0:
            self._phase_began_s = time.monotonic()
        detail = prefill_detail(done, total, elapsed_s)
        self._update("reading", done / total if total else 1.0, detail)

    def _update(self, phase: str, share: float, detail: str) -> None:
        now_s = time.monotonic()
        felt = now_s - self._phase_began_s >= FELT_S
        if not self._enabled or not felt or now_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = now_s
        bar = self._bar or self._start()
        bar.update(bar.task_ids[0], description=phase, completed=share, detail=detail, refresh=True)

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[detail]}"),
        )
        bar = Progress(
            *columns,
            console=self._streams.error_console(),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,  # the line editor, made meanwhile, would write to the stand-in for ever
            redirect_stderr=False,
        )
        bar.add_task("", total=1.0, detail="")
        bar.start()
        self._bar = bar
        return bar

    def clear(self) -> None:
        """Take the bar off the screen; a new phase begins."""
        self._phase_began_s = time.monotonic()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
