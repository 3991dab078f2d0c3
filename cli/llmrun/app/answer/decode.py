"""One answer on the engine, from its prompt to its last token: prefill, decode, and a context that may grow
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, starmap

from llmrun.app.answer.answer_text import AnswerText
from llmrun.app.answer.context_use import with_answer
from llmrun.app.answer.kv_use import kv_use
from llmrun.app.answer.prompts import ANSWER_ROOM
from llmrun.app.loading import Opened
from llmrun.app.prefixes.cache import PrefixCache
from llmrun.engine.api import EndReason, EndStep, Engine, Job, PrefillStep, Run, Step, TokenStep
from llmrun.events import (
    ContextUse,
    Event,
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


@dataclass(slots=True)
class Decoded:
    """What a decode has brought so far."""

    sampled: list[int] = field(default_factory=list)
    choices: list[TokenChoice] = field(default_factory=list)
    reason: EndReason = "interrupted"
    prefix: PrefixReport = field(default_factory=PrefixReport)
    context: ContextUse | None = None

    def kept(self, text: AnswerText, piece: Callable[[int], bytes]) -> Sequence[int]:
        """The sampled tokens that stand for text of the answer: no closing token, no stop string."""
        if self.reason == "eog":
            return self.sampled[:-1]
        if self.reason != "stopped":
            return self.sampled
        ends = accumulate(len(piece(token)) for token in self.sampled)
        shown_bytes = len((text.reasoning + text.answer).encode())
        return self.sampled[: sum(end <= shown_bytes for end in ends)]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Runs one job. `context` tells what its prompt takes, as often as asked; `watched`: tell the figures
    meanwhile."""

    opened: Opened
    cache: PrefixCache
    clock: Clock
    job: Job
    text: AnswerText
    timeline: Timeline
    context: Callable[[], ContextUse | None] | None = None
    watched: bool = False
    decoded: Decoded = field(default_factory=Decoded)

    def events(self) -> Generator[Event, None, Decoded]:
        """Yield the events from the first slice of the prompt to the last token."""
        decoded, began_s = self.decoded, self.clock()
        measured_s = began_s
        self.timeline.prefill_started()
        for run, step in self._steps():
            match step:
                case Notice():
                    yield step
                case PrefillStep():
                    yield from self._evaluated(step, began_s)
                case TokenStep():
                    now_s = yield from self._take(step)
                    if self.text.stopped:
                        run.stop(SEQ)
                    self._keep_budget(run)
                    if self.watched and now_s - measured_s >= MEASURE_S:
                        measured_s = now_s
                        self._look()
                        kv = kv_use(self.opened.engine)
                        yield Measured(self.timeline.finished(), decoded.prefix, kv, decoded.context)
                case EndStep():
                    decoded.reason = step.reason
        self._look()
        return decoded

    def _steps(self) -> Iterator[tuple[Run, Step | Notice]]:
        """The steps of the job; where the context is full and can grow, it goes on in the larger one."""
        run, sampled = self.opened.engine.run([self.job]), self.decoded.sampled
        for step in run:
            grown = False
            if isinstance(step, EndStep) and step.reason == "context":
                for notice in grow(self.opened, len(self.job.prompt) + len(sampled)):
                    grown = True
                    yield run, notice
            if grown:
                run.go_on(SEQ)
            elif not (isinstance(step, PrefillStep) and sampled):  # of what had to be evaluated again
                yield run, step

    def _evaluated(self, step: PrefillStep, began_s: float) -> Iterator[Event]:
        """A slice of the prompt; the first one, of no tokens, tells how much was reused."""
        now_s = self.clock()
        self.cache.reached(step)
        yield PrefillProgress(step.done, step.total, now_s - began_s, now_s)
        if step.done == 0:
            self.decoded.prefix = self.cache.report(step.reused)
            self.timeline.reused(step.reused)
        elif step.done == step.total:
            self.timeline.prefilled()
            yield Prefilled(len(self.job.prompt), step.reused, now_s - began_s)

    def _take(self, step: TokenStep) -> Generator[Event, None, float]:
        """One sampled token; returns when it was there."""
        self.decoded.sampled.append(step.token)
        parts = [] if step.eog else self.text.feed(step.token)
        now_s = self.timeline.token(1, self.text.kind)
        yield from _token_events(parts, self.text, now_s)
        if step.logprobs is not None:
            chosen = self._likelihood(step.token, step.logprobs.logprob)
            others = tuple(starmap(self._likelihood, step.logprobs.top))
            self.decoded.choices.append(TokenChoice(chosen, others))
        return now_s

    def _likelihood(self, token: int, logprob: float) -> Likelihood:
        return Likelihood(token, self.opened.engine.piece(token), logprob)

    def _keep_budget(self, run: Run) -> None:
        """Close a reasoning block that has used up its tokens."""
        budget = self.opened.settings.output.think_budget
        if budget is not None and self.timeline.reasoning_tokens == budget:
            close_reasoning(self.opened.engine, run, self.text)

    def _look(self) -> None:
        """See what the request takes of the context so far."""
        if self.context is not None:
            use, capacity = self.context(), self.opened.engine.facts.n_ctx_seq
            output = self.opened.settings.output
            self.decoded.context = use and with_answer(use, len(self.decoded.sampled), output, capacity)


def grow(opened: Opened, n_tokens: int) -> Iterator[Notice]:
    """Let the context grow, where it may, to hold so many tokens and an answer; tells if it has grown."""
    engine, growth = opened.engine, opened.growth
    before = engine.facts.n_ctx_seq
    answer = min(opened.settings.output.max_tokens or ANSWER_ROOM, ANSWER_ROOM)  # a longer one grows it
    size = growth.size_for(n_tokens + answer, engine.facts) if growth else None
    if size is not None and engine.resize(size):
        now = format_tokens(engine.facts.n_ctx_seq)
        yield Notice("info", f"the context has grown from {format_count(before)} to {now}")


def close_reasoning(engine: Engine, run: Run, text: AnswerText) -> None:
    """Close the reasoning block under way, if any, as the model itself would."""
    if text.closing_marker is not None:
        marker = f"{text.closing_marker}\n\n"
        run.force(SEQ, engine.tokenize(marker, add_special=False, parse_special=True))


def _token_events(parts: Sequence[tuple[str, str]], text: AnswerText, now_s: float) -> list[Token]:
    """One event per part; the token counts with the last part, or alone while its text is held back."""
    if not parts:
        return [Token("", 1, text.kind, now_s)]
    events = [Token(t, 0, "reasoning" if kind == "reasoning" else "answer", now_s) for kind, t in parts[:-1]]
    kind, last = parts[-1]
    return [*events, Token(last, 1, "reasoning" if kind == "reasoning" else "answer", now_s)]
