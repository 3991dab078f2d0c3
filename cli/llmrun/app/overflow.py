"""Makes room for a conversation that has outgrown its context, before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from llmrun.app.prompts import ANSWER_ROOM
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Room, Window, left_out_to_fit, widened
from llmrun.config.views import OutputSettings
from llmrun.events import Event, Notice
from llmrun.units import format_count

SUMMARY_TOKENS = 256
"""Most tokens of a summary; an eighth of the context if that is less."""

Count = Callable[[Sequence[Message]], int]
Summarize = Callable[[tuple[Message, ...], int], Generator[Event, None, str]]
"""Writes the summary that the messages ask for, of at most so many tokens; empty where nothing came of it."""


def answer_room(settings: OutputSettings, capacity: int) -> int:
    """Tokens to keep free for the answer: its bound if it has one, and never more than a quarter of all."""
    return min(settings.max_tokens or ANSWER_ROOM, capacity // 4)


def make_room(
    conversation: Conversation,
    window: Window,
    settings: OutputSettings,
    capacity: int,
    count: Count,
    summarize: Summarize,
) -> Generator[Event, None, Window]:
    """The window that lets prompt and answer fit into `capacity` tokens, by the policy of `settings`.

    Says what was left out, and what came back since the context is larger. A prompt may come out too long all
    the same, where its system text and newest message alone are, and where the policy is to stop.
    """
    if settings.overflow == "stop":
        return Window()
    room = Room(capacity, answer_room(settings, capacity), int(capacity * settings.overflow_headroom))
    before, window = window, widened(conversation, window, room, count)
    left_out = left_out_to_fit(conversation, window, room, count)
    if left_out == window.left_out:
        if left_out < before.left_out:
            yield Notice("info", _told_back(left_out, capacity))
        return window
    summary = ""
    if settings.overflow == "summarize":
        yield Notice("info", f"summing up {_messages(left_out)} that the context has no room for")
        summary = yield from _summary(conversation, window, left_out, capacity, count, summarize)
        again = Window(left_out, summary)
        left_out = left_out_to_fit(conversation, again, Room(capacity, room.answer), count)
    yield Notice("warning", _told(left_out, capacity, summary, settings))
    return Window(left_out, summary)


def _summary(
    conversation: Conversation,
    window: Window,
    left_out: int,
    capacity: int,
    count: Count,
    summarize: Summarize,
) -> Generator[Event, None, str]:
    """A summary of what is left out, or of the part of it that the context can take at once."""
    n_tokens = min(SUMMARY_TOKENS, capacity // 8)
    asked = conversation.to_summarize(left_out)
    start = left_out_to_fit(asked, window, Room(capacity, n_tokens), count)
    messages = asked.messages(Window(start, window.summary))
    if count(messages) + n_tokens > capacity:
        return ""
    return (yield from summarize(messages, n_tokens))


def _told(left_out: int, capacity: int, summary: str, settings: OutputSettings) -> str:
    what = f"the context of {format_count(capacity)} tokens is too small for the whole conversation"
    if summary:
        return f"{what}: in place of its first {_messages(left_out)} the model reads: {summary}"
    failed = "no summary came of it; " if settings.overflow == "summarize" else ""
    return f"{what}: {failed}its first {_messages(left_out)} are left out"


def _told_back(left_out: int, capacity: int) -> str:
    rest = f"all but its first {_messages(left_out)}" if left_out else "all"
    return f"the context of {format_count(capacity)} tokens has room for {rest} of the conversation again"


def _messages(exchanges: int) -> str:
    return f"{format_count(2 * exchanges)} messages"
