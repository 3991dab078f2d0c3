"""The one clock that every measurement reads, handed in so that tests can set the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since some fixed moment, never going back."""


def process_clock(now: Clock = time.perf_counter) -> Clock:
    """A clock that reads 0 at this call; made once, when the process is ready."""
    origin_s = now()
    return lambda: now() - origin_s
