"""After an answer a chat evaluates what the next message will come behind, and no prompt tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmrun.app.chat import Chat
from llmrun.app.prefixes import cache
from llmrun.app.prefixes.cache import MOST_AHEAD
from llmrun.app.worker import Stop
from llmrun.chat.template import TemplateRaised, TemplateRenderer
from llmrun.engine.api import DecodeResult
from llmrun.engine.scripted import ScriptedEngine
from llmrun.events import Completion, Token

from tests.support.requests import Answered, Desk


def say(chat: Chat, text: str) -> Completion:
    return Answered(tuple(chat.say(text))).completion


def test_the_next_turn_waits_for_its_message_alone(desk: Desk) -> None:
    replies = [["first ", "answer"], ["second"]]
    chat = desk.chat(replies)
    one = say(chat, "question")
    n_opening = len("\n<|user|>")
    assert chat.kv.tokens == one.kv.tokens + n_opening
    two = say(chat, "another")
    assert two.stats.cached_tokens == two.prefix.memory_tokens == one.kv.tokens + n_opening
    assert two.stats.prefill_tokens == len("another\n<|go|>")
    assert two.prefix.miss_reason == ""
    prompt = b"".join(map(desk.engines[-1].piece, desk.engines[-1].prompts[-1]))
    assert prompt == b"<|user|>question\n<|go|>first answer\n<|user|>another\n<|go|>"


def test_what_was_read_in_vain_leaves_no_trace(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for most in (MOST_AHEAD, 0):
        monkeypatch.setattr(cache, "MOST_AHEAD", most)
        chat = desk.chat([["one"], ["two"], ["three"]])
        say(chat, "the first message")
        say(chat, "the second message")
        chat.session.undo()
        told.append(say(chat, "the other message").prefix)
    assert told[0] == told[1]


def test_nothing_is_read_ahead_of_an_answer_that_was_stopped(desk: Desk) -> None:
    stop = Stop()
    chat = desk.chat([["one ", "two ", "three"]], stop)
    events = []
    for event in chat.say("a question to begin with"):
        events.append(event)
        if isinstance(event, Token):
            stop.press()
    assert chat.kv.tokens == Answered(tuple(events)).completion.kv.tokens


@pytest.mark.parametrize("n_fed", [0, 4])
def test_ctrl_c_ends_the_reading_and_nothing_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, n_fed: int
) -> None:
    stop, feed = Stop(), ScriptedEngine.feed

    def interrupted(engine: ScriptedEngine, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        feed(engine, pairs[:n_fed])
        stop.press()
        return feed(engine, pairs[n_fed:])

    monkeypatch.setattr(ScriptedEngine, "feed", interrupted)
    chat = desk.chat([["one"], ["two"]], stop)
    one = say(chat, "question")
    assert (one.text, one.finish_reason) == ("one", "stop")
    assert chat.kv.tokens == one.kv.tokens + n_fed
    two = say(chat, "another")
    assert (two.text, two.finish_reason) == ("two", "stop")
    assert two.stats.cached_tokens == one.kv.tokens + n_fed
    assert two.prefix.miss_reason == ""


def test_nothing_is_read_ahead_of_a_message_that_does_not_come(desk: Desk) -> None:
    chat = desk.chat([["answer"]])
    answered = Answered(tuple(chat.say("a question to end with", last=True)))
    assert answered.completion.kv.tokens == chat.kv.tokens


def test_nothing_is_read_ahead_without_a_prefix_cache(desk: Desk) -> None:
    chat = desk.chat([["answer"]], prefix_cache=False)
    assert say(chat, "a question to begin with").kv.tokens == chat.kv.tokens


def test_nothing_is_read_ahead_where_it_does_not_fit(desk: Desk) -> None:
    chat = desk.chat([["a"]], n_ctx=256, n_ctx_train=256)
    opening = len("<|user|>\n<|go|>a\n<|user|>")
    fits, full = (say(chat, "x" * (256 - opening - more)).kv.tokens == chat.kv.tokens for more in (1, 0))
    assert (fits, full) == (False, True)


def test_a_template_that_refuses_what_is_tried_spoils_no_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, message = TemplateRenderer.render, "a question to begin with"

    def picky(renderer: TemplateRenderer, messages: list[dict[str, object]], **named: Any) -> str:
        if messages[-1]["content"] != message:
            raise TemplateRaised("not this")
        return render(renderer, messages, **named)

    monkeypatch.setattr(TemplateRenderer, "render", picky)
    chat = desk.chat([["answer"]])
    answered = say(chat, message)
    assert answered.text == "answer"
    assert chat.kv.tokens == answered.kv.tokens
