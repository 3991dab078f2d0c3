"""After an answer a chat evaluates what the next message will come behind, and no prompt tells."""

from __future__ import annotations

from typing import Any

import pytest

from llmrun.app.chat import Chat
from llmrun.app.worker import Stop
from llmrun.chat.template import TemplateRaised, TemplateRenderer
from llmrun.events import Completion, Token

from tests.support.requests import Answered, Desk, ScriptClock

MEASURABLE_S = 0.001
"""Of a slice: without a rate nothing is read ahead."""


def say(chat: Chat, text: str) -> Completion:
    return Answered(tuple(chat.say(text))).completion


def test_the_next_turn_waits_for_its_message_alone(desk: Desk) -> None:
    replies = [["first ", "answer"], ["second"]]
    chat = desk.chat(replies, clock=ScriptClock(MEASURABLE_S))
    one = say(chat, "question")
    n_opening = len("\n<|user|>")
    assert chat.kv.tokens == one.kv.tokens + n_opening
    two = say(chat, "another")
    assert two.stats.cached_tokens == two.prefix.memory_tokens == one.kv.tokens + n_opening
    assert two.stats.prefill_tokens == len("another\n<|go|>")
    assert two.prefix.miss_reason == ""
    desk.chat(replies)
    for text in ("question", "another"):
        say(desk.chats[-1], text)
    assert desk.engines[0].prompts == desk.engines[1].prompts


def test_what_was_read_in_vain_leaves_no_trace(desk: Desk) -> None:
    told = []
    for clock in (ScriptClock(MEASURABLE_S), ScriptClock()):
        chat = desk.chat([["one"], ["two"], ["three"]], clock=clock)
        say(chat, "the first message")
        say(chat, "the second message")
        chat.session.undo()
        told.append(say(chat, "the other message").prefix)
    assert told[0] == told[1]


def test_nothing_is_read_ahead_of_an_answer_that_was_stopped(desk: Desk) -> None:
    stop = Stop()
    chat = desk.chat([["one ", "two ", "three"]], stop, clock=ScriptClock(MEASURABLE_S))
    events = []
    for event in chat.say("a question to begin with"):
        events.append(event)
        if isinstance(event, Token):
            stop.press()
    assert chat.kv.tokens == Answered(tuple(events)).completion.kv.tokens


def test_nothing_is_read_ahead_of_a_message_that_does_not_come(desk: Desk) -> None:
    chat = desk.chat([["answer"]], clock=ScriptClock(MEASURABLE_S))
    answered = Answered(tuple(chat.say("a question to end with", last=True)))
    assert answered.completion.kv.tokens == chat.kv.tokens


@pytest.mark.parametrize(("clock", "cache"), [(10.0, True), (0.0, True), (MEASURABLE_S, False)])
def test_nothing_is_read_ahead_where_it_is_slow_unmeasured_or_unwanted(
    desk: Desk, clock: float, cache: bool
) -> None:
    chat = desk.chat([["answer"]], clock=ScriptClock(clock), prefix_cache=cache)
    assert say(chat, "a question to begin with").kv.tokens == chat.kv.tokens


def test_a_template_that_refuses_what_is_tried_spoils_no_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, message = TemplateRenderer.render, "a question to begin with"

    def picky(renderer: TemplateRenderer, messages: list[dict[str, object]], **named: Any) -> str:
        if messages[-1]["content"] != message:
            raise TemplateRaised("not this")
        return render(renderer, messages, **named)

    monkeypatch.setattr(TemplateRenderer, "render", picky)
    chat = desk.chat([["answer"]], clock=ScriptClock(MEASURABLE_S))
    answered = say(chat, message)
    assert answered.text == "answer"
    assert chat.kv.tokens == answered.kv.tokens
