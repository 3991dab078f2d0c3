"""Whole exchanges are left out, oldest first, as few as the room asks for."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from llmrun.chat.messages import Message
from llmrun.chat.overflow import SUMMARY_REQUEST, Conversation, Room, Window, left_out_to_fit

words = st.integers(1, 40).map(lambda n: "w" * n)
conversations = st.builds(
    lambda system, pairs, newest: Conversation(
        system,
        tuple((Message("user", q), Message("assistant", a)) for q, a in pairs),
        Message("user", newest),
    ),
    st.one_of(st.just(""), words),
    st.lists(st.tuples(words, words), max_size=12),
    words,
)
rooms = st.builds(Room, st.integers(1, 400), st.integers(0, 60), st.integers(0, 80))


def size(messages: Sequence[Message]) -> int:
    """Stands for the tokens of a prompt."""
    return sum(len(message.content) + 2 for message in messages)


def by_trying(conversation: Conversation, window: Window, room: Room) -> int:
    """The rule word by word."""
    n = len(conversation.exchanges)
    sizes = {k: size(conversation.messages(Window(k, window.summary))) for k in range(window.left_out, n + 1)}
    wanted = room.capacity - room.answer
    if sizes[window.left_out] <= wanted:
        return window.left_out
    later = range(window.left_out + 1, n + 1)
    for within in (wanted - room.headroom, wanted):
        for k in later:
            if sizes[k] <= within:
                return k
    return n


@given(conversations, rooms, st.integers(0, 12), st.one_of(st.just(""), words))
def test_as_few_as_needed_are_left_out(
    conversation: Conversation, room: Room, before: int, summary: str
) -> None:
    window = Window(min(before, len(conversation.exchanges)), summary)
    assert left_out_to_fit(conversation, window, room, size) == by_trying(conversation, window, room)


@given(conversations, st.integers(0, 12))
def test_the_prompt_is_that_of_a_fresh_conversation_of_the_kept_messages(
    conversation: Conversation, left_out: int
) -> None:
    fresh = Conversation(conversation.system, conversation.exchanges[left_out:], conversation.newest)
    messages = conversation.messages(Window(left_out))
    assert messages == fresh.messages()
    assert messages[-1] == conversation.newest
    assert not conversation.system or messages[0] == Message("system", conversation.system)


@given(conversations, rooms)
def test_a_window_with_headroom_stays_for_the_next_turns(conversation: Conversation, room: Room) -> None:
    left_out = left_out_to_fit(conversation, Window(), room, size)
    assert left_out_to_fit(conversation, Window(left_out), room, size) in (
        left_out,
        len(conversation.exchanges),  # nothing fits: the caller refuses
    )


@given(conversations, words)
def test_a_summary_follows_the_system_text_and_asks_about_what_is_left_out(
    conversation: Conversation, summary: str
) -> None:
    n = len(conversation.exchanges)
    first = conversation.messages(Window(n, summary))[0]
    assert first.role == "system"
    assert first.content.startswith(conversation.system)
    assert first.content.endswith(summary)
    *told, request = conversation.to_summarize(n).messages()
    assert request == Message("user", SUMMARY_REQUEST)
    assert [m for pair in conversation.exchanges for m in pair] == [m for m in told if m.role != "system"]
