"""Lets the model sum up what a conversation has no room for."""

from __future__ import annotations

from collections.abc import Generator

from llmrun.app.answer.answer_text import AnswerText
from llmrun.app.answer.decode import SEQ, close_reasoning
from llmrun.app.answer.prompts import Prompter, log_prompt
from llmrun.app.loading import Opened
from llmrun.chat.messages import Message
from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.chat.turns import History
from llmrun.engine.api import EndStep, Job, PrefillStep, SamplingParams, TokenStep
from llmrun.events import Event, PrefillProgress
from llmrun.metrics.clock import Clock

GREEDY = SamplingParams(temperature=0)


def summarize(
    opened: Opened, history: History, clock: Clock, messages: tuple[Message, ...], n_tokens: int
) -> Generator[Event, None, tuple[str | None, History]]:
    """The summary that `messages` ask for, of at most so many tokens, and what the sequence then holds.

    It reuses what the sequence holds of the conversation, `history`. The model may think for half of the
    tokens. None where it is stopped.
    """
    engine, prepared = opened.engine, Prompter(opened, history).chat(messages)
    log_prompt(prepared)
    text = AnswerText(engine, (), ReasoningSplitter(prepared.prompt.opened_reasoning))
    sampled: list[int] = []
    began_s = clock()
    run = engine.run([Job(SEQ, prepared.tokens, GREEDY, n_tokens)])
    for step in run:
        match step:
            case PrefillStep():
                now_s = clock()
                yield PrefillProgress(step.done, step.total, now_s - began_s, now_s)
            case TokenStep(eog=False):
                sampled.append(step.token)
                text.feed(step.token)
                if len(sampled) == n_tokens // 2:
                    close_reasoning(engine, run, text)
            case EndStep(reason="interrupted"):
                return None, history
    text.finish()
    return text.answer.strip(), prepared.history.with_sampled(sampled, engine.piece)
