"""`llmrun chat`: a conversation on one model that stays open."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from llmrun.app.loading import Opened, OpenRequest, open_model
from llmrun.app.request_log import logged
from llmrun.app.turn import Ask, Turns
from llmrun.app.worker import Stop
from llmrun.chat.messages import Conversation
from llmrun.engine.api import EngineFactory
from llmrun.events import Completion, Event, Notice
from llmrun.metrics.clock import Clock


class Chat:
    """Keeps the conversation and the tokens that the sequence's K/V stands for. `open` comes first."""

    def __init__(
        self, request: OpenRequest, clock: Clock, stop: Stop, factory: EngineFactory | None = None
    ) -> None:
        self._request = request
        self._clock = clock
        self._stop = stop
        self._factory = factory
        self._opened: Opened | None = None

    def open(self) -> Iterator[Event]:
        """Load the model; errors are those of `open_model`."""
        opened = yield from open_model(self._request, self._clock, self._stop, self._factory)
        self._opened = opened
        self._turns = Turns(opened, self._clock)
        self._conversation = Conversation(opened.settings.output.system or "")

    def say(self, text: str) -> Iterator[Event]:
        """Answer `text` and yield the events; errors are those of `Turns.answer`."""
        self._stop.release()
        return logged(self._answer(text), self._request.sources.env)

    def _answer(self, text: str) -> Generator[Event, None, Completion]:
        """A message that fails, or is stopped before any text came, is taken back."""
        self._conversation.add_user(text)
        try:
            completion = yield from self._turns.answer(Ask(self._conversation.messages))
        except BaseException:
            self._conversation.undo()
            raise
        interrupted = completion.finish_reason == "interrupted"
        if interrupted and not completion.text and not completion.reasoning:
            self._conversation.undo()
            yield Notice("info", "stopped before the answer began; the message was taken back")
        else:
            self._conversation.add_assistant(completion.text, completion.reasoning, interrupted=interrupted)
        return completion

    def close(self) -> None:
        """Free the model; closing twice does nothing."""
        if self._opened is not None:
            self._opened.close()
