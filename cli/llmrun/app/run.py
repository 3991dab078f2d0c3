"""`llmrun run`: one answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmrun.app.answer.turn import Ask, Turns
from llmrun.app.loading import OpenRequest, open_model
from llmrun.app.request_log import logged
from llmrun.app.worker import Stop
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation
from llmrun.engine.api import EngineFactory
from llmrun.events import Event
from llmrun.metrics.clock import Clock


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One prompt for one model. `raw`: a completion without template; the system text is a setting.
    `metered`: count what the parts of the prompt take of the context."""

    open: OpenRequest
    prompt: str
    raw: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    metered: bool = False


def run(
    request: RunRequest, clock: Clock, stop: Stop, factory: EngineFactory | None = None
) -> Iterator[Event]:
    """Open the model, answer, close; errors are those of `open_model` and `Turns.answer`."""
    opened = yield from open_model(request.open, clock, stop, factory)
    try:
        if request.raw:
            ask = Ask(raw=request.prompt)
        else:
            system = opened.settings.output.system or ""
            ask = Ask(Conversation(system, (), Message("user", request.prompt)))
        ask = replace(ask, ignore_eos=request.ignore_eos, logprobs=request.logprobs)
        yield from logged(Turns(opened, clock, metered=request.metered).answer(ask), request.open.sources.env)
    finally:
        opened.close()
