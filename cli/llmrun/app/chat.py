"""`llmrun chat`: a conversation, the model that is open, and the settings that hold now."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from llmrun.app.answer.kv_use import kv_use
from llmrun.app.answer.turn import Ask, Turns
from llmrun.app.loading import Opened, OpenRequest, open_model
from llmrun.app.request_log import logged
from llmrun.app.worker import Stop
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Window
from llmrun.config.layers import Effective
from llmrun.config.schema import BY_NAME
from llmrun.engine.api import EngineFactory
from llmrun.errors import EngineFailure, LlmrunError, UsageError, WriteFailure
from llmrun.events import Completion, Event, Finished, KvUse, ModelInfo, Notice
from llmrun.journal.session import Session
from llmrun.journal.session_records import Turn
from llmrun.metrics.clock import Clock
from llmrun.store.resolve import lasting_ref, resolve

log = logging.getLogger("llmrun.chat")

LOADING_GROUPS = ("hardware", "context")
"""Settings that a model is loaded with; the others hold from the next answer on."""

DEFAULT = "default"
"""In place of a value: what the setting was before it was changed in the chat."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the answers of this chat. Times in seconds, the rest in tokens.

    A prefill that was cut short counts in neither tokens nor time, since nobody knows how far it came.
    `timed_tokens` are those that `generation_s` is of: all that were generated but each answer's first.
    """

    answers: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    timed_tokens: int = 0
    prefill_s: float = 0.0
    generation_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return self.cached_tokens + self.prefill_tokens

    @property
    def prefill_rate(self) -> float | None:
        """Tokens a second; None where nothing was evaluated."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else None

    @property
    def generation_rate(self) -> float | None:
        """Tokens a second after each answer's first; None where there are none."""
        return self.timed_tokens / self.generation_s if self.generation_s else None

    def plus(self, completion: Completion) -> Totals:
        """With one more answer."""
        stats = completion.stats
        complete = stats.prefill_complete
        return Totals(
            self.answers + 1,
            self.cached_tokens + stats.cached_tokens,
            self.prefill_tokens + (stats.prefill_tokens if complete else 0),
            self.generated_tokens + stats.generated_tokens,
            self.timed_tokens + max(0, stats.generated_tokens - 1),
            self.prefill_s + (stats.prefill_s if complete else 0.0),
            self.generation_s + stats.generation_s,
        )


class Chat:
    """Answers on one open model, keeping `session` up to date. `open` comes first.

    Changes to the session that cannot be written take effect all the same; methods then raise
    `WriteFailure`, answers yield a warning.
    """

    def __init__(
        self,
        request: OpenRequest,
        session: Session,
        clock: Clock,
        stop: Stop,
        factory: EngineFactory | None = None,
        *,
        watched: bool = False,
    ) -> None:
        """`watched`: send `Measured` events while an answer comes."""
        self.session = session
        self.totals = Totals()
        self.last: Completion | None = None
        self._request = self._loaded = request
        self._clock = clock
        self._stop = stop
        self._factory = factory
        self._watched = watched
        self._opened: Opened | None = None

    @property
    def is_open(self) -> bool:
        """True once a model is loaded."""
        return self._opened is not None

    @property
    def model(self) -> ModelInfo:
        """The model that is open."""
        return self._open.info

    @property
    def request(self) -> OpenRequest:
        """What it was opened with, changes since included."""
        return self._request

    @property
    def n_threads(self) -> int:
        """Threads that generate."""
        return self._open.engine.facts.n_threads

    @property
    def settings(self) -> Effective:
        """The settings that hold for the next answer."""
        return self._open.settings

    @property
    def kv(self) -> KvUse:
        """What the K/V cache holds now."""
        return kv_use(self._open.engine)

    @property
    def _open(self) -> Opened:
        if self._opened is None:
            raise RuntimeError("the chat has no open model")
        return self._opened

    def open(self, since_s: float = 0.0, *, welcome: bool = False) -> Iterator[Event]:
        """Load the model, timed from `since_s` on the clock; errors are those of `open_model`.

        `welcome`: who named and configured no model is told of the best one for this machine.
        """
        request = self._request
        opened = yield from open_model(request, self._clock, self._stop, self._factory, since_s=since_s)
        self._opened, self._loaded, self.last = opened, request, None
        self._turns = Turns(opened, self._clock, watched=self._watched, metered=True, converses=True)
        if welcome and request.model is None and opened.settings.context.model is None:
            yield from _suggestion(request.sources.env)

    def say(self, text: str, *, last: bool = False) -> Iterator[Event]:
        """Answer `text`; errors are those of `Turns.answer`, after which the conversation is as before.

        `last`: no message follows in this process, so that nothing is evaluated ahead for one.
        """
        self._stop.release()
        return logged(self._answer(text, regen=False, last=last), self._request.sources.env)

    def regenerate(self) -> Iterator[Event]:
        """Answer the last message again, in place of the last answer.

        Raises:
            UsageError: there is no message yet.
        """
        if not self.session.turns:
            raise UsageError("there is nothing to answer again", "say something first")
        self._stop.release()
        return logged(self._answer(self.session.turns[-1].user, regen=True), self._request.sources.env)

    def _answer(self, text: str, *, regen: bool, last: bool = False) -> Generator[Event, None, None]:
        turns = self.session.turns
        window = Window(turns[-1].left_out, turns[-1].summary) if turns else Window()
        ask = _ask(self.session.system, turns[:-1] if regen else turns, text, window)
        for event in self._turns.answer(replace(ask, last=last)):
            if isinstance(event, Finished):  # kept before anybody sees that it is complete
                yield from self._keep(text, event.completion, regen=regen)
            yield event

    def _keep(self, text: str, completion: Completion, *, regen: bool) -> Iterator[Event]:
        """Add an answered message to sums and session."""
        self.last, self.totals = completion, self.totals.plus(completion)
        interrupted = completion.finish_reason == "interrupted"
        if interrupted and not completion.text and not completion.reasoning:
            yield Notice("info", "stopped before the answer began; the message was taken back")
            return
        try:
            with suppress(WriteFailure):  # it stays due, and the turn that follows tells
                self.session.set_model(lasting_ref(completion.model.ref))
            left_out = completion.dropped_messages // 2
            self.session.add_completion(
                text, completion, regen=regen, left_out=left_out, summary=completion.summary
            )
        except WriteFailure as error:
            yield Notice("warning", f"this turn is not saved: {error.message}")

    def change(self, name: str, value: str) -> bool:
        """Set a setting, `DEFAULT` takes that back; True if it holds only once a model is loaded again.

        Raises:
            UsageError: no such setting, or no such value; nothing has changed.
        """
        if name in ("model", "system"):
            raise UsageError(f"{name} is not changed with /set", f"use /{name}")
        sources = self._request.sources
        kept = {known: given for known, given in sources.chat.items() if known != name}
        undone = value == DEFAULT and name in BY_NAME
        sources = replace(sources, chat=kept if undone else {**kept, name: value})
        opened = self._open.with_settings(sources)
        self._use_settings(opened, replace(self._request, sources=sources))
        return name not in BY_NAME or BY_NAME[name].group in LOADING_GROUPS

    def _use_settings(self, opened: Opened, request: OpenRequest) -> None:
        self._opened, self._request = opened, request
        self._turns.use(opened)

    def switch(self, ref: str | None) -> Iterator[Event]:
        """Load another model (None: the same again) and keep the conversation.

        Where there is no such model the old one stays open; where it cannot be opened the old one is loaded
        again as it was last. The error is raised in either case.

        Raises:
            EngineFailure: the old one cannot be loaded either; no model is open.
        """
        if ref:
            resolve(ref)
        self._stop.release()
        yield from self._turns.leave()
        before, began_s = self._loaded, self._clock()
        wanted = replace(self._request, model=ref, template_file=None) if ref else self._request
        self._open.close()
        self._stop.detach()
        self._request = wanted
        try:
            yield from self.open(began_s)
        except LlmrunError:
            self._request = before
            self._stop.release()
            try:
                yield from self.open(began_s)
            except LlmrunError as error:
                raise EngineFailure(f"the model before cannot be loaded again: {error.message}") from error
            raise
        try:
            self.session.set_model(lasting_ref(self.model.ref))
        except WriteFailure as error:
            yield Notice("warning", error.message)

    def close(self) -> None:
        """Free the model and let go of the session; closing twice does nothing.

        Raises:
            WriteFailure: something of the session is still not written.
        """
        opened = None if self._stop.stuck else self._opened
        try:
            if opened is not None:
                self._stop.release()  # the last answer may have been stopped, not the keeping
                for notice in self._turns.leave():
                    log.info("%s", notice.text)  # nobody is shown anything any more
        finally:
            if opened is not None:
                opened.close()
            self.session.close()


def _ask(system: str, turns: tuple[Turn, ...], text: str, window: Window) -> Ask:
    """The conversation with its newest message; it goes on with the window of the turn before, or of the one
    that is answered again."""
    exchanges = tuple(
        (Message("user", turn.user), Message("assistant", turn.answer, turn.reasoning, turn.interrupted))
        for turn in turns
    )
    return Ask(Conversation(system, exchanges, Message("user", text)), window)


def _suggestion(env: Mapping[str, str]) -> Iterator[Event]:
    """The model of the catalogue that suits this machine, if any does."""
    from llmrun.app.library.suggest import suggestion
    from llmrun.app.memory.host_memory import host_memory
    from llmrun.store.catalogue import load_catalogue

    line = suggestion(load_catalogue(env), host_memory().free_bytes)
    if line is not None:
        yield Notice("info", line)
