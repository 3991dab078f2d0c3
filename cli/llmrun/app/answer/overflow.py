"""Makes room for a conversation that has outgrown its context, before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from llmrun.app.answer.prompts import ANSWER_ROOM
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Room, Window, exchanges_that_fit, left_out_to_fit, widened
from llmrun.config.views import OutputSettings
from llmrun.events import Event, Notice
from llmrun.units import format_count

SUMMARY_TOKENS = 256
"""Most tokens of a summary; an eighth of the context if that is less."""

Count = Callable[[Sequence[Message]], int]
Summarize = Callable[[tuple[Message, ...], int], Generator[Event, None, str | None]]
"""Writes the summary that the messages ask for, of at most so many tokens; empty where nothing came of it,
None where it was stopped."""


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
    the same: where its system text and newest message alone are, which leaves out all and says nothing, and
    where the policy is to stop.
    """
    if settings.overflow == "stop":
        return Window()
    room = Room(capacity, answer_room(settings, capacity), int(capacity * settings.overflow_headroom))
    before, window = window, widened(conversation, window, room, count)
    shortest = Window(len(conversation.exchanges), window.summary)
    if count(conversation.messages(window)) > capacity and alone_too_long(conversation, capacity, count):
        return replace(shortest, summary="")
    if window.summary and count(conversation.messages(shortest)) > capacity:
        window = Window(window.left_out)
        yield Notice("warning", f"the summary is too long for a context of {format_count(capacity)} tokens")
    left_out = left_out_to_fit(conversation, window, room, count)
    if left_out == window.left_out:
        if left_out < before.left_out:
            yield Notice("info", _told_back(left_out, capacity))
        return window
    dropped, summary = Window(left_out, window.summary), ""
    if settings.overflow == "summarize":
        yield Notice("info", f"summing up {_messages(left_out)} that the context has no room for")
        written = yield from _summary(conversation, window, left_out, capacity, count, summarize)
        if written is None:
            return dropped  # for an answer that will not begin
        summary = written
    if summary:
        again = Window(left_out, summary)
        left_out = left_out_to_fit(conversation, again, Room(capacity, room.answer), count)
        again = replace(again, left_out=left_out)
        if count(conversation.messages(again)) <= capacity:
            dropped = again
        else:
            summary = ""
    yield Notice("warning", _told(dropped.left_out, capacity, summary, settings))
    return dropped


def alone_too_long(conversation: Conversation, capacity: int, count: Count) -> bool:
    """Whether not even system text and newest message fit, so that nothing helps that could be left out."""
    return count(conversation.messages(Window(len(conversation.exchanges)))) > capacity


def _summary(
    conversation: Conversation,
    window: Window,
    left_out: int,
    capacity: int,
    count: Count,
    summarize: Summarize,
) -> Generator[Event, None, str | None]:
    """A summary of what is left out, in several steps where it is too long to be read at once.

    Each step sums up the summary so far and what follows it. An exchange too long even alone is passed over;
    where nothing comes of a step, the summary so far is all. None is begun that there is no room for. None is
    returned where it is stopped.
    """
    n_tokens = min(SUMMARY_TOKENS, capacity // 8)
    if count(conversation.messages(Window(len(conversation.exchanges)))) + n_tokens > capacity:
        return ""
    while window.left_out < left_out:
        end = exchanges_that_fit(conversation, window, left_out, capacity - n_tokens, count)
        if end == window.left_out:
            window = replace(window, left_out=end + 1)
            continue
        summary = yield from summarize(conversation.to_summarize(end).messages(window), n_tokens)
        if not summary:
            return window.summary if summary == "" else None
        window = Window(end, summary)
    return window.summary


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
