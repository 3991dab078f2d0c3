"""Runs a use-case beside the main thread, so that Ctrl-C is obeyed while native code computes.

Python delivers signals to the main thread only, and only between byte codes: a main thread inside the
library would notice Ctrl-C when the call returns. Here it waits on a queue, which a signal wakes at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from types import FrameType
from typing import TypeVar

from llmrun.engine.api import Engine
from llmrun.errors import Interrupted

T = TypeVar("T")
PATIENCE_S = 1.0
"""How long a stopped request may take to end before Ctrl-C ends the program."""


class Stop:
    """One request's stop button, safe from any thread and from a signal handler."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.stuck = False
        """A worker did not end in time: it may still be inside the engine, which must not be closed."""
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """From here on `press` reaches the decode loop too."""
        self._engine = engine
        if self.cancelled.is_set():
            engine.interrupt()

    def detach(self) -> None:
        """The engine is being closed; until another is attached, a model loads."""
        self._engine = None

    @property
    def loading(self) -> bool:
        """True until an engine is attached."""
        return self._engine is None

    def press(self) -> None:
        """End the request soon."""
        self.cancelled.set()
        if self._engine is not None:
            self._engine.interrupt()

    def release(self) -> None:
        """Make ready for the next request."""
        self.cancelled.clear()
        if self._engine is not None:
            self._engine.resume()


class SigintStops:
    """While active, Ctrl-C presses `stop`. It raises while a model loads, and again after `PATIENCE_S`.

    A second press that comes sooner is the same impatience: a request stops well within that time.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._pressed_s = 0.0

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGINT, self._on_sigint)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _on_sigint(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._stop.cancelled.is_set():
            self._pressed_s = time.monotonic()
        overdue = time.monotonic() - self._pressed_s > PATIENCE_S
        self._stop.press()
        if overdue or self._stop.loading:
            raise Interrupted("interrupted")


def in_worker(
    events: Iterable[T], stop: Stop, wants: Callable[[T], bool] = lambda _: True
) -> Generator[T, None, None]:
    """Yield the events of a use-case that runs in a thread of its own; its errors are raised here.

    Only events that `wants` accepts are handed over: each one wakes the main thread, which takes a core from
    the compute threads in the middle of a token.

    Leaving early presses `stop` and waits for the thread, but no longer than `PATIENCE_S`; after an
    impatient Ctrl-C it does not wait at all.
    """
    mailbox: SimpleQueue[T | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            for event in events:
                if wants(event):
                    mailbox.put(event)
            mailbox.put(None)
        except BaseException as error:  # noqa: BLE001 raised again in the thread that asked
            mailbox.put(error)

    thread = threading.Thread(target=work, name="llmrun-worker", daemon=True)
    thread.start()
    try:
        while (item := mailbox.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    except Interrupted:  # the user has waited long enough, or the library does not listen while it loads
        stop.stuck = thread.is_alive()
        raise
    except BaseException:  # left early, or a signal ends the program: what was said so far is kept first
        stop.press()
        thread.join(PATIENCE_S)
        stop.stuck = thread.is_alive()
        raise
