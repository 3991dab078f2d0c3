"""Kills a child process that takes too long over one piece of work.

One thread watches the process as long as it lives. A timer would start a thread for every piece, which waits
for a processor while the engine's threads hold them all, and the first token waits with it.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue


class Watchdog:
    """Watches one process, until `close` or until it had to be killed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._limits_s: SimpleQueue[float | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self.expired = False
        """The process took too long and was killed."""
        threading.Thread(target=self._watch, name="llmrun-watchdog", daemon=True).start()

    @contextmanager
    def limit(self, wall_s: float) -> Iterator[None]:
        """Give the process so many seconds for the work of this block."""
        self._limits_s.put(wall_s)
        try:
            yield
        finally:
            self._done.put(None)

    def close(self) -> None:
        """Watch no longer."""
        self._limits_s.put(None)

    def _watch(self) -> None:
        while (limit_s := self._limits_s.get()) is not None:
            try:
                self._done.get(timeout=limit_s)
            except Empty:
                self.expired = True
                self._process.kill()
                return
