"""One request from messages to answer: make room, render, tokenise, decode, measure, keep.

This is a plain generator of events on one thread; `app/worker.py` moves it beside the main thread. What the
sequence holds from the turn before is reused as far as the new prompt agrees with it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cache

from llmrun.app.answer.answer_text import AnswerText
from llmrun.app.answer.context_use import context_use
from llmrun.app.answer.decode import SEQ, Decoded, Decoder, grow
from llmrun.app.answer.kv_use import kv_use
from llmrun.app.answer.overflow import alone_too_long, make_room
from llmrun.app.answer.prompts import NO_MEMORY, ControlTexts, Prepared, Prompter, log_prompt
from llmrun.app.answer.summary import summarize
from llmrun.app.loading import Opened
from llmrun.app.plan import sampling_params
from llmrun.app.prefixes.reuse import Reuse
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Window
from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.chat.turns import History
from llmrun.engine.api import EndReason, Engine, Job
from llmrun.events import Accepted, Completion, ContextUse, Event, Finished, FinishReason, Notice, Token
from llmrun.metrics.clock import Clock
from llmrun.metrics.timeline import Timeline
from llmrun.units import format_count

_FINISH: dict[EndReason, FinishReason] = {
    "eog": "stop",
    "stopped": "stop",
    "length": "length",
    "context": "context",
    "interrupted": "interrupted",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What to answer: a conversation through the template, less what `window` leaves out, or `raw` text.
    `last`: the conversation does not go on in this process."""

    conversation: Conversation | None = None
    window: Window = field(default_factory=Window)
    raw: str | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    last: bool = False


class Turns:
    """Answers requests on one loaded model, one after the other."""

    def __init__(
        self,
        opened: Opened,
        clock: Clock,
        *,
        watched: bool = False,
        metered: bool = False,
        converses: bool = False,
    ) -> None:
        """`watched`: send `Measured` a few times a second. `metered`: count what parts of a prompt take of
        the context. `converses`: answers may be asked to go on."""
        self._opened = opened
        self._engine: Engine = opened.engine
        self._settings = opened.settings
        self._clock = clock
        self._watched, self._metered = watched, metered
        self._history = History()
        self._control_texts = ControlTexts(opened.engine)
        self._left = False
        self._reuse = Reuse(opened, clock, converses=converses)

    def use(self, opened: Opened) -> None:
        """Go on under changed settings of the same open model."""
        self._opened, self._settings = opened, opened.settings

    def answer(self, ask: Ask) -> Generator[Event, None, Completion]:
        """Yield the events of one request.

        Raises:
            UsageError: a text is not UTF-8.
            PromptTooLong: the prompt has more tokens than the context.
            TemplateUnusable: the chat template fails or refuses.
            EngineFailure: the engine fails.
        """
        timeline = Timeline(self._clock, self._opened.load_s)
        yield Accepted(timeline.accepted())
        prepared, window = yield from self._prepare(ask, timeline)
        prompt, history, tokens = prepared.prompt, prepared.history, prepared.tokens
        timeline.tokenized(len(tokens))
        splitter = None if ask.raw is not None else ReasoningSplitter(prompt.opened_reasoning)
        text = AnswerText(self._engine, self._settings.output.stop, splitter)
        sampling = sampling_params(self._settings, self._opened.n_ctx_to_come, ignore_eos=ask.ignore_eos)
        messages = ask.conversation.messages(window) if ask.conversation else ()
        marks = yield from self._reuse.bring_near(prepared, messages)
        job = Job(SEQ, tokens, sampling, self._settings.output.max_tokens, ask.logprobs, marks)
        meter = cache(lambda: self._context_use(ask, prepared, window)) if self._metered else None
        decoder = Decoder(
            self._opened, self._reuse.cache, self._clock, job, text, timeline, meter, watched=self._watched
        )
        decoded = yield from decoder.events()
        for kind, rest in text.finish():
            yield Token(rest, 0, kind, self._clock())
        if text.stopped:
            decoded.reason = "stopped"
        self._history = history.with_sampled(decoded.kept(text, self._engine.piece), self._engine.piece)
        interrupted = decoded.reason == "interrupted"
        self._reuse.answered(messages, Message("assistant", text.answer, text.reasoning, interrupted))
        completion = self._completion(job, text, timeline, decoded, window)
        yield from self._notes(completion)
        yield Finished(completion, self._clock())
        if not interrupted:
            if not ask.last:  # before it is kept, so that a resumed chat goes on from the same token
                self._reuse.read_ahead(self._prompter(self._history))
            yield from self._reuse.keep(self._history, len(tokens), completion.stats.total_s)
        return completion

    def leave(self) -> Iterator[Notice]:
        """Keep what the sequence holds for a resumption, where that pays; then the engine may be closed.

        Leaving twice does nothing.
        """
        if self._left:
            return
        self._left = True
        yield from self._reuse.keep(self._history, len(self._history.tokens), 0.0, leaving=True)

    def _prepare(self, ask: Ask, timeline: Timeline) -> Generator[Event, None, tuple[Prepared, Window]]:
        """The prompt, and what of the conversation it leaves out."""
        if ask.conversation is not None:
            self._history = self._reuse.recall(self._history, ask.conversation, ask.window)
        prompter = self._prompter(self._history)
        if ask.conversation is None:
            prepared, window = prompter.raw(ask.raw or ""), ask.window
            yield from grow(self._opened, len(prepared.tokens))
        else:
            # what was left out comes back in a larger context
            wanted = Window() if self._opened.may_grow else ask.window
            yield from grow(self._opened, prompter.count(ask.conversation.messages(wanted)))
            capacity = self._engine.facts.n_ctx_seq
            window = yield from make_room(
                ask.conversation, ask.window, self._settings.output, capacity, prompter.count, self._summarize
            )
            if window.left_out > ask.window.left_out and self._opened.may_grow:
                yield Notice("info", NO_MEMORY)
            if window.summary != ask.window.summary:  # the sequence now holds what asked for the summary
                timeline.started()
                prompter = self._prompter(self._history)
            prepared = prompter.chat(ask.conversation.messages(window))
        log_prompt(prepared)
        if prepared.prompt.folded_system:
            yield Notice("info", "the chat template takes no system message: it leads the first message")
        if len(prepared.tokens) > self._engine.facts.n_ctx_seq:
            raise prompter.refusal(len(prepared.tokens), droppable=self._droppable(ask, window, prompter))
        return prepared, window

    def _prompter(self, history: History) -> Prompter:
        return Prompter(self._opened, history, self._control_texts)

    def _droppable(self, ask: Ask, window: Window, prompter: Prompter) -> bool:
        """Whether a prompt that is too long would fit without older messages."""
        talk, capacity = ask.conversation, self._engine.facts.n_ctx_seq
        if talk is None or window.left_out == len(talk.exchanges):
            return False
        return not alone_too_long(talk, capacity, prompter.count)

    def _summarize(self, messages: tuple[Message, ...], n_tokens: int) -> Generator[Event, None, str | None]:
        """The summary that the messages ask for; the sequence holds what asked for it then."""
        summary, self._history = yield from summarize(
            self._opened, self._history, self._clock, messages, n_tokens
        )
        return summary

    def _context_use(self, ask: Ask, prepared: Prepared, window: Window) -> ContextUse | None:
        prompter = self._prompter(History())
        capacity = self._engine.facts.n_ctx_seq
        return context_use(prepared, ask.conversation, window, self._settings.output, capacity, prompter)

    def _completion(
        self, job: Job, text: AnswerText, timeline: Timeline, decoded: Decoded, window: Window
    ) -> Completion:
        return Completion(
            model=self._opened.info,
            text=text.answer,
            reasoning=text.reasoning,
            finish_reason=_FINISH[decoded.reason],
            stats=timeline.finished(),
            prefix=decoded.prefix,
            kv=kv_use(self._engine),
            dropped_messages=2 * window.left_out,
            summary=window.summary,
            settings={
                **self._opened.settings_json,
                "n_ctx": self._engine.facts.n_ctx_seq,
                "seed": job.sampling.seed,
            },
            choices=None if job.logprobs is None else tuple(decoded.choices),
            context=decoded.context,
        )

    def _notes(self, completion: Completion) -> Generator[Event, None, None]:
        if completion.finish_reason == "context":
            n_ctx = format_count(self._engine.facts.n_ctx_seq)
            why = f", and {NO_MEMORY}" if self._opened.may_grow else ""
            yield Notice("warning", f"the context of {n_ctx} tokens is full{why}; the answer ends here")
        if completion.reasoning and not completion.text and completion.finish_reason in ("length", "context"):
            yield Notice("warning", "the answer ended inside the reasoning; raise -n to let it finish")
