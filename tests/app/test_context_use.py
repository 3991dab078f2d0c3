"""The parts of a prompt add up to all of it, and each stands for its text."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from llmrun.app.answer import decode, turn
from llmrun.app.answer.context_use import context_use
from llmrun.app.chat import Chat
from llmrun.events import ContextUse, Measured

from tests.support.puppet import write_puppet
from tests.support.requests import Answered, Desk

CAPACITY = 600
SHOUTING = "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}"


def context(chat: Chat, text: str) -> ContextUse | None:
    return Answered(tuple(chat.say(text))).completion.context


def watched(desk: Desk, **flags: object) -> Chat:
    return desk.chat(
        [["one"], ["two"]],
        None,
        watched=True,
        n_ctx_train=8192,
        n_ctx=CAPACITY,
        max_tokens=20,
        **flags,
    )


@pytest.mark.parametrize("system", ["", "s", "user", "Be brief. 日本"])
@pytest.mark.parametrize("newest", ["u", "go", "<|go|>", "what? 語", " x "])
def test_each_part_has_the_tokens_of_its_text(desk: Desk, system: str, newest: str) -> None:
    """The scripted tokenizer has a token for each byte, and for the answer's pieces."""
    chat = watched(desk, system=system or None)
    head = f"<|system|>{system}" if system else "<|user|>"
    context(chat, "first" if system else "")
    use = context(chat, newest)
    assert use is not None
    assert use.system_tokens == len(head.encode())
    between = ("\n<|user|>first" if system else "") + "\n<|go|>" + "\n<|user|>"
    assert use.history_tokens == len(between) + 1
    assert use.newest_tokens == len(newest.encode()) + len("\n<|go|>")
    assert use.answer_tokens == 20
    total = use.system_tokens + use.history_tokens + use.newest_tokens
    assert total == len(desk.engines[-1].prompts[-1])
    assert use.free_tokens + use.answer_tokens + total == CAPACITY


def test_it_is_counted_where_nobody_watches_and_not_where_nobody_asks(desk: Desk) -> None:
    events = Answered(tuple((chat := desk.chat([["one"]])).say("a"))).events
    assert not any(isinstance(event, Measured) for event in events)
    assert chat.last is not None
    assert chat.last.context is not None
    assert desk.run(["one"]).completion.context is None


def test_a_text_that_the_template_changes_is_not_guessed_at(desk: Desk, tmp_path: Path) -> None:
    desk.chat_model = write_puppet(tmp_path / "shouting.gguf", ["never said"], template=SHOUTING).path
    chat = watched(desk)
    assert context(chat, "hello") is None
    assert context(chat, "HELLO") is not None


@pytest.mark.parametrize("text", ["hello", "HELLO"])
def test_a_prompt_is_looked_at_once(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Also where nothing comes of it: while an answer comes, the figures are shown several times a second."""
    look = Mock(wraps=context_use)
    monkeypatch.setattr(turn, "context_use", look)
    monkeypatch.setattr(decode, "MEASURE_S", 0.0)
    desk.chat_model = write_puppet(tmp_path / "shouting.gguf", ["never said"], template=SHOUTING).path
    chat = desk.chat([["one ", "two ", "three"]], watched=True)
    events = list(chat.say(text))
    assert sum(isinstance(event, Measured) for event in events) > 1
    look.assert_called_once()


def test_the_first_message_has_no_history(desk: Desk) -> None:
    use = context(watched(desk, system="s"), "hello")
    assert use is not None
    assert (use.system_tokens, use.history_tokens) == (len("<|system|>s"), 0)
    assert use.newest_tokens == len("\n<|user|>hello\n<|go|>")


@pytest.mark.parametrize("system", [None, "s"])
def test_a_summary_is_history(desk: Desk, system: str | None) -> None:
    replies = [["one"], ["In short."], ["two"]]
    chat = desk.chat(
        replies, None, watched=True, n_ctx=512, max_tokens=20, system=system, overflow="summarize"
    )
    context(chat, "a" * 200)
    use = context(chat, "b" * 300)
    assert chat.session.turns[-1].summary == "In short."
    assert use is not None
    assert use.history_tokens > len("In short.")
    assert use.newest_tokens == 300 + len("\n<|go|>")
