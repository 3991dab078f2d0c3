"""Writes each finished request to the request log, and never lets the log spoil an answer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC
from typing import TypeVar

from llmrun.errors import WriteFailure
from llmrun.events import Event, Finished, Notice

Result = TypeVar("Result")


def logged(events: Generator[Event, None, Result], env: Mapping[str, str]) -> Generator[Event, None, Result]:
    """Pass events on; a `Finished` is logged after it was shown. A log that cannot be written is a notice."""
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            result: Result = end.value
            return result
        yield event
        if isinstance(event, Finished):
            yield from _log(event, env)


def _log(finished: Finished, env: Mapping[str, str]) -> Generator[Event, None, None]:
    from datetime import datetime

    from llmrun.config.dirs import user_data_dir
    from llmrun.journal.requests import log_request

    try:
        log_request(user_data_dir(env), finished.completion, datetime.now(UTC))
    except WriteFailure as error:
        yield Notice("warning", f"this request is not logged: {error.message}; {error.hint}")
