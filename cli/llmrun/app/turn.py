"""One request from messages to answer: render, tokenise, prefill, decode, measure.

This is a plain generator of events on one thread; `app/worker.py` moves it beside the main thread. What the
sequence holds from the turn before is reused as far as the new prompt agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, starmap

from llmrun.app.answer_text import AnswerText
from llmrun.app.context_use import context_use, with_answer
from llmrun.app.kv_use import kv_use
from llmrun.app.loading import Opened
from llmrun.app.overflow import make_room
from llmrun.app.plan import sampling_params
from llmrun.app.prompts import ANSWER_ROOM, NO_MEMORY, Prepared, Prompter, log_prompt
from llmrun.app.reuse import Reuse
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Window
from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.chat.turns import History
from llmrun.engine.api import (
    EndReason,
    EndStep,
    Engine,
    Job,
    PrefillStep,
    Run,
    SamplingParams,
    Step,
    TokenStep,
)
from llmrun.events import (
    Accepted,
    Completion,
    ContextUse,
    Event,
    Finished,
    FinishReason,
    Likelihood,
    Measured,
    Notice,
    Prefilled,
    PrefillProgress,
    PrefixReport,
    Token,
    TokenChoice,
)
from llmrun.metrics.clock import Clock
from llmrun.metrics.timeline import Timeline
from llmrun.units import format_count, format_tokens

SEQ = 0
"""The sequence that holds the conversation."""

MEASURE_S = 0.25
"""Time between two `Measured` events: often enough to watch, too rare to cost anything."""

GREEDY = SamplingParams(temperature=0)

_FINISH: dict[EndReason, FinishReason] = {
    "eog": "stop",
    "stopped": "stop",
    "length": "length",
    "context": "context",
    "interrupted": "interrupted",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What to answer: a conversation through the template, less what `window` leaves out, or `raw` text."""

    conversation: Conversation | None = None
    window: Window = field(default_factory=Window)
    raw: str | None = None
    ignore_eos: bool = False
    logprobs: int | None = None


@dataclass(slots=True)
class _Decoded:
    """What a decode has brought so far."""

    sampled: list[int] = field(default_factory=list)
    choices: list[TokenChoice] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    forced_at: int = 0
    reason: EndReason = "interrupted"
    prefix: PrefixReport = field(default_factory=PrefixReport)
    context: ContextUse | None = None

    @property
    def due(self) -> list[int]:
        """What is still to come of the forced tokens."""
        return self.forced[len(self.sampled) - self.forced_at :]


class Turns:
    """Answers requests on one loaded model, one after the other."""

    def __init__(
        self, opened: Opened, clock: Clock, *, watched: bool = False, converses: bool = False
    ) -> None:
        """`watched`: send `Measured` a few times a second. `converses`: answers may be asked to go on."""
        self._opened = opened
        self._engine: Engine = opened.engine
        self._settings = opened.settings
        self._clock = clock
        self._watched = watched
        self._history = History()
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
        sampling = sampling_params(self._settings, self._engine.facts.n_ctx_seq, ignore_eos=ask.ignore_eos)
        messages = ask.conversation.messages(window) if ask.conversation else ()
        marks = yield from self._reuse.bring_near(prepared, messages)
        job = Job(SEQ, tokens, sampling, self._settings.output.max_tokens, ask.logprobs, marks)
        decoded = yield from self._decode(
            job, text, timeline, lambda: self._context_use(ask, prepared, window)
        )
        for kind, rest in text.finish():
            yield Token(rest, 0, kind, self._clock())
        if text.stopped:
            decoded.reason = "stopped"
        self._history = history.with_sampled(self._kept(decoded, text), self._engine.piece)
        interrupted = decoded.reason == "interrupted"
        self._reuse.answered(messages, Message("assistant", text.answer, text.reasoning, interrupted))
        completion = self._completion(job, text, timeline, decoded, window)
        yield from self._notes(completion)
        yield Finished(completion, self._clock())
        if not interrupted:
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
        prompter = Prompter(self._opened, self._history)
        if ask.conversation is None:
            prepared, window = prompter.raw(ask.raw or ""), ask.window
            yield from self._grow(len(prepared.tokens))
        else:
            # what was left out comes back in a larger context
            wanted = Window() if self._opened.may_grow else ask.window
            yield from self._grow(prompter.count(ask.conversation.messages(wanted)))
            capacity = self._engine.facts.n_ctx_seq
            window = yield from make_room(
                ask.conversation, ask.window, self._settings.output, capacity, prompter.count, self._summarize
            )
            if window.left_out > ask.window.left_out and self._opened.may_grow:
                yield Notice("info", NO_MEMORY)
            if window.summary != ask.window.summary:  # the sequence now holds what asked for the summary
                timeline.started()
                prompter = Prompter(self._opened, self._history)
            prepared = prompter.chat(ask.conversation.messages(window))
        log_prompt(prepared)
        if prepared.prompt.folded_system:
            yield Notice("info", "the chat template takes no system message: it leads the first message")
        droppable = ask.conversation is not None and window.left_out < len(ask.conversation.exchanges)
        prompter.check_fits(len(prepared.tokens), droppable=droppable)
        return prepared, window

    def _grow(self, n_tokens: int) -> Iterator[Notice]:
        """Let the context grow, where it may, to hold so many tokens and an answer; tells if it has grown."""
        before = self._engine.facts.n_ctx_seq
        answer = min(self._settings.output.max_tokens or ANSWER_ROOM, ANSWER_ROOM)  # a longer one grows it
        growth = self._opened.growth
        size = growth.size_for(n_tokens + answer, self._engine.facts) if growth else None
        if size is not None and self._engine.resize(size):
            now = format_tokens(self._engine.facts.n_ctx_seq)
            yield Notice("info", f"the context has grown from {format_count(before)} to {now}")

    def _summarize(self, messages: tuple[Message, ...], n_tokens: int) -> Generator[Event, None, str]:
        """Let the model write a summary, reusing what the sequence holds of the conversation; empty where it
        is stopped. It may think for half of its tokens."""
        prepared = Prompter(self._opened, self._history).chat(messages)
        log_prompt(prepared)
        text = AnswerText(self._engine, (), ReasoningSplitter(prepared.prompt.opened_reasoning))
        sampled: list[int] = []
        began_s = self._clock()
        run = self._engine.run([Job(SEQ, prepared.tokens, GREEDY, n_tokens)])
        for step in run:
            match step:
                case PrefillStep():
                    now_s = self._clock()
                    yield PrefillProgress(step.done, step.total, now_s - began_s, now_s)
                case TokenStep(eog=False):
                    sampled.append(step.token)
                    text.feed(step.token)
                    if len(sampled) == n_tokens // 2:
                        self._close_reasoning(run, text)
                case EndStep(reason="interrupted"):
                    return ""
        text.finish()
        self._history = prepared.history.with_sampled(sampled, self._engine.piece)
        return text.answer.strip()

    def _kept(self, decoded: _Decoded, text: AnswerText) -> Sequence[int]:
        """The sampled tokens that stand for text of the answer: no closing token, no stop string."""
        sampled, reason = decoded.sampled, decoded.reason
        if reason == "eog":
            return sampled[:-1]
        if reason != "stopped":
            return sampled
        ends = accumulate(len(self._engine.piece(token)) for token in sampled)
        shown_bytes = len((text.reasoning + text.answer).encode())
        return sampled[: sum(end <= shown_bytes for end in ends)]

    def _context_use(self, ask: Ask, prepared: Prepared, window: Window) -> ContextUse | None:
        prompter = Prompter(self._opened, History())
        capacity = self._engine.facts.n_ctx_seq
        return context_use(prepared, ask.conversation, window, self._settings.output, capacity, prompter)

    def _context_now(self, decoded: _Decoded, context: Callable[[], ContextUse | None]) -> ContextUse | None:
        """What the request takes so far; its prompt is looked at once."""
        use, capacity = decoded.context or context(), self._engine.facts.n_ctx_seq
        return use and with_answer(use, len(decoded.sampled), self._settings.output, capacity)

    def _decode(
        self, job: Job, text: AnswerText, timeline: Timeline, context: Callable[[], ContextUse | None]
    ) -> Generator[Event, None, _Decoded]:
        decoded = _Decoded()
        began_s = measured_s = self._clock()
        timeline.prefill_started()
        for run, step in self._steps(job, decoded):
            match step:
                case Notice():
                    yield step
                case PrefillStep():
                    now_s = self._clock()
                    self._reuse.cache.reached(step)
                    yield PrefillProgress(step.done, step.total, now_s - began_s, now_s)
                    if step.done == 0:
                        decoded.prefix = self._reuse.cache.report(step.reused)
                        timeline.reused(step.reused)
                    elif step.done == step.total:
                        timeline.prefilled()
                        yield Prefilled(len(job.prompt), step.reused, now_s - began_s)
                case TokenStep():
                    now_s = yield from self._take(step, decoded, text, timeline)
                    if text.stopped:
                        run.stop(SEQ)
                    self._keep_budget(run, timeline, text, decoded)
                    if self._watched and now_s - measured_s >= MEASURE_S:
                        measured_s = now_s
                        decoded.context = self._context_now(decoded, context)
                        kv = kv_use(self._engine)
                        yield Measured(timeline.finished(), decoded.prefix, kv, decoded.context)
                case EndStep():
                    decoded.reason = step.reason
        if self._watched:
            decoded.context = self._context_now(decoded, context)
        return decoded

    def _steps(self, job: Job, decoded: _Decoded) -> Iterator[tuple[Run, Step | Notice]]:
        """The steps of a job; where the context is full and can grow, the job goes on in the larger one."""
        going_on = job
        while True:
            run, grown = self._engine.run([going_on]), False
            run.force(SEQ, decoded.due)
            for step in run:
                if isinstance(step, EndStep) and step.reason == "context":
                    for notice in self._grow(len(job.prompt) + len(decoded.sampled)):
                        grown = True
                        yield run, notice
                if not grown and not (isinstance(step, PrefillStep) and decoded.sampled):
                    yield run, step
            if not grown:
                return
            left = None if job.max_tokens is None else job.max_tokens - len(decoded.sampled)
            going_on = replace(job, prompt=[*job.prompt, *decoded.sampled], max_tokens=left)

    def _take(
        self, step: TokenStep, decoded: _Decoded, text: AnswerText, timeline: Timeline
    ) -> Generator[Event, None, float]:
        """One sampled token; returns when it was there."""
        decoded.sampled.append(step.token)
        parts = [] if step.eog else text.feed(step.token)
        now_s = timeline.token(1, text.kind)
        yield from _token_events(parts, text, now_s)
        if step.logprobs is not None:
            chosen = self._likelihood(step.token, step.logprobs.logprob)
            decoded.choices.append(TokenChoice(chosen, tuple(starmap(self._likelihood, step.logprobs.top))))
        return now_s

    def _likelihood(self, token: int, logprob: float) -> Likelihood:
        return Likelihood(token, self._engine.piece(token), logprob)

    def _keep_budget(self, run: Run, timeline: Timeline, text: AnswerText, decoded: _Decoded) -> None:
        """Close a reasoning block that has used up its tokens."""
        budget = self._settings.output.think_budget
        if budget is not None and timeline.reasoning_tokens == budget:
            decoded.forced, decoded.forced_at = self._close_reasoning(run, text), len(decoded.sampled)

    def _close_reasoning(self, run: Run, text: AnswerText) -> list[int]:
        """Close the reasoning block under way, if any, as the model itself would; the tokens that do it."""
        if text.closing_marker is None:
            return []
        closing = f"{text.closing_marker}\n\n"
        tokens = self._engine.tokenize(closing, add_special=False, parse_special=True)
        run.force(SEQ, tokens)
        return tokens

    def _completion(
        self, job: Job, text: AnswerText, timeline: Timeline, decoded: _Decoded, window: Window
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


def _token_events(parts: Sequence[tuple[str, str]], text: AnswerText, now_s: float) -> list[Token]:
    """One event per part; the token counts with the last part, or alone while its text is held back."""
    if not parts:
        return [Token("", 1, text.kind, now_s)]
    events = [Token(t, 0, "reasoning" if kind == "reasoning" else "answer", now_s) for kind, t in parts[:-1]]
    kind, last = parts[-1]
    return [*events, Token(last, 1, "reasoning" if kind == "reasoning" else "answer", now_s)]
