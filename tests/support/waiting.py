"""Waiting for something that can be seen, never for a length of time.

The one time here bounds how long a test that fails may hang; no test that passes comes near it, also where
the machine is ten times slower, or stops a process for some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 600.0


def wait_until(condition: Callable[[], bool], what: str = "what another process does") -> None:
    """Until something that another process or thread does."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what}"
        time.sleep(0.01)


def wait_for_a_new_time_stamp(file: Path) -> None:
    """Until a change of `file` gets another time than its last one.

    A file system takes its times from a clock that moves some hundred times a second: two changes that come
    faster, of a file that keeps its length, cannot be told apart.
    """
    probe = file.with_name(f"{file.name}.probe")
    last = max(file.stat().st_mtime_ns, file.stat().st_ctime_ns)

    def later() -> bool:
        probe.write_bytes(b"x")
        return probe.stat().st_mtime_ns > last

    wait_until(later, "later time stamp")
    probe.unlink()
