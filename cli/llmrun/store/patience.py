"""How long work after an answer may go on: nobody waits for it, so it ends when it is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PIECE_BYTES = 8 << 20
"""Work on a file asks after so many bytes whether to go on: often enough for a user who wants to leave."""


class GaveUp(Exception):
    """The work was not finished. `in_time` tells that it was stopped, and not too slow."""

    def __init__(self, done_bytes: int, *, in_time: bool) -> None:
        super().__init__(f"given up after {done_bytes:,} bytes")
        self.done_bytes = done_bytes
        self.in_time = in_time


@dataclass(frozen=True, slots=True)
class Patience:
    """Ends at `until_s` on the monotonic clock, and when `stopped` says so."""

    until_s: float = float("inf")
    stopped: Callable[[], bool] = lambda: False

    def check(self, done_bytes: int) -> None:
        """Raise GaveUp if the work, of which `done_bytes` are done, is to end here."""
        late = time.monotonic() > self.until_s
        if late or self.stopped():
            raise GaveUp(done_bytes, in_time=not late)


ENDLESS = Patience()
