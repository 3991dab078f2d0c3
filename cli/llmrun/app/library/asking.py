"""A question to the Hub that may take long, asked by a thread of its own.

The one who waits can then be told so, and Ctrl-C ends the wait at once: looking up a host's name
(getaddrinfo, POSIX.1-2017) cannot be interrupted, and with a resolver that is silent takes many seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from llmrun.errors import NetworkFailure
from llmrun.reports.download import HubAwaited

T = TypeVar("T")

LISTING_LIMIT_S = 60.0
"""For a repository's listing, which is one answer of some 100 KB."""
_FELT_S, _TELL_EVERY_S = 2.0, 1.0


def asked(question: Callable[[], T], limit_s: float = float("inf")) -> Generator[HubAwaited, None, T]:
    """The answer to `question`; every second, from the second one on, how long it is waited for.

    Closing the generator, or an exception in it, leaves the question to itself. Raises what the question
    raises, and `NetworkFailure` after `limit_s`.
    """
    from llmrun.store.hub import hub_host

    answers: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # noqa: BLE001 raised again where the answer is waited for
            errors.append(error)
        done.set()

    threading.Thread(target=ask, name="llmrun-ask", daemon=True).start()
    began_s, pause_s = time.monotonic(), min(_FELT_S, limit_s)
    while not done.wait(pause_s):
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            raise NetworkFailure(f"{hub_host()} has not answered for {limit_s:.0f} s", "try again later")
        yield HubAwaited(hub_host(), waited_s)
        pause_s = min(_TELL_EVERY_S, limit_s - waited_s)
    if errors:
        raise errors[0]
    return answers[0]


def answer(asking: Generator[HubAwaited, None, T]) -> T:
    """What `asking` comes to, told by nobody."""
    try:
        while True:
            next(asking)
    except StopIteration as end:
        result: T = end.value
        return result
