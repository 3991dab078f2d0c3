"""A conversation that outgrows its context goes on, and says what the model no longer sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.app.chat import Chat
from llmrun.app.worker import Stop
from llmrun.chat.messages import Message
from llmrun.chat.overflow import (
    SUMMARY_HEAD,
    SUMMARY_REQUEST,
    Conversation,
    Room,
    Window,
    left_out_to_fit,
    widened,
)
from llmrun.errors import PromptTooLong
from llmrun.events import Event, Notice, PrefillProgress

from tests.support.puppet import write_puppet
from tests.support.requests import Answered, Desk

SYSTEM = "SYS-7734"


def say(chat: Chat, text: str) -> Answered:
    return Answered(tuple(chat.say(text)))


def warnings(answered: Answered) -> list[str]:
    return [e.text for e in answered.events if isinstance(e, Notice) and e.level == "warning"]


def prompt_of(desk: Desk, index: int = -1) -> str:
    engine = desk.engines[-1]
    return b"".join(map(engine.piece, engine.prompts[index])).decode()


def long_chat(desk: Desk, **flags: object) -> tuple[Chat, list[Answered]]:
    """Thirty turns in a window that holds a few."""
    chat = desk.chat(
        [["fine"]],
        None,
        n_ctx=512,
        max_tokens=20,
        system=SYSTEM,
        watched=False,
        n_ctx_train=8192,
        **flags,
    )
    return chat, [say(chat, f"message {number:02} " + "x" * 40) for number in range(30)]


def test_every_prompt_has_the_system_text_first_and_the_newest_message_whole(desk: Desk) -> None:
    _, answers = long_chat(desk)
    for number, prompt in enumerate(prompt_of(desk, n) for n in range(30)):
        assert prompt.startswith(f"<|system|>{SYSTEM}\n<|user|>message ")
        assert prompt.endswith(f"<|user|>message {number:02} {'x' * 40}\n<|go|>")
        assert len(prompt) + 20 <= 512
    assert answers[0].completion.dropped_messages == 0
    assert answers[-1].completion.dropped_messages > 0


def test_whole_exchanges_go_and_the_turn_on_which_they_go_says_so(desk: Desk) -> None:
    _, answers = long_chat(desk)
    dropped = [answer.completion.dropped_messages for answer in answers]
    assert dropped == sorted(dropped)
    assert all(count % 2 == 0 for count in dropped)
    for before, answer in zip([0, *dropped], answers, strict=False):
        count = answer.completion.dropped_messages
        assert [f"{count} messages" in text for text in warnings(answer)] == [True] * (count != before)


def test_headroom_keeps_the_prefix_for_several_turns(desk: Desk) -> None:
    def cached(**flags: object) -> int:
        _, answers = long_chat(desk, **flags)
        return sum(a.completion.stats.cached_tokens for a in answers)

    assert cached(overflow_headroom="0.4") > 1.5 * cached(overflow_headroom="0")


def test_the_prompt_is_that_of_a_fresh_chat_of_the_kept_messages(desk: Desk) -> None:
    chat, answers = long_chat(desk)
    last = prompt_of(desk)
    kept = chat.session.turns[answers[-1].completion.dropped_messages // 2 :]
    fresh = desk.chat([["fine"]], system=SYSTEM)
    for turn in kept:
        say(fresh, turn.user)
    assert prompt_of(desk) == last


def test_undo_takes_the_window_back_with_the_turn(desk: Desk) -> None:
    chat, answers = long_chat(desk)
    first_drop = next(i for i, a in enumerate(answers) if a.completion.dropped_messages)
    chat.session.undo(30 - first_drop)
    again = say(chat, "short")
    assert again.completion.dropped_messages == 0


def test_stop_refuses_with_the_numbers_and_keeps_the_conversation(desk: Desk) -> None:
    chat = desk.chat([["fine"]], n_ctx=256, overflow="stop")
    say(chat, "a" * 100)
    turns = chat.session.turns
    with pytest.raises(PromptTooLong) as refused:
        say(chat, "b" * 150)
    assert "256" in refused.value.message
    assert "--overflow" in refused.value.hint
    assert chat.session.turns == turns


@pytest.mark.parametrize("policy", ["drop", "summarize"])
def test_what_cannot_be_dropped_is_refused(desk: Desk, policy: str) -> None:
    chat = desk.chat([["fine"]], n_ctx=256, system="s" * 300, overflow=policy)
    with pytest.raises(PromptTooLong) as refused:
        say(chat, "b")
    assert "--overflow" not in refused.value.hint


@pytest.mark.parametrize("policy", ["drop", "summarize", "stop"])
def test_a_message_too_long_by_itself_is_refused_at_once(desk: Desk, policy: str) -> None:
    """No summary is written for it, nothing is said to be left out, and no policy is named as a way out."""
    chat = desk.chat([["fine"]], n_ctx=256, max_tokens=20, system=SYSTEM, overflow=policy)
    say(chat, "a" * 60)
    runs, shown, events = len(desk.engines[-1].prompts), list[Event](), chat.say("b" * 300)
    with pytest.raises(PromptTooLong) as refused:
        shown.extend(events)
    assert not any(isinstance(event, Notice) for event in shown)
    assert len(desk.engines[-1].prompts) == runs
    assert "--overflow" not in refused.value.hint
    alone = len(f"<|system|>{SYSTEM}\n<|user|>{'b' * 300}\n<|go|>")
    assert (f"{alone} tokens" in refused.value.message) == (policy != "stop")
    assert say(chat, "c" * 20).completion.dropped_messages == 0


def test_an_answer_may_use_what_room_is_left(desk: Desk) -> None:
    chat = desk.chat([["x"] * 600], n_ctx=256, max_tokens=500)
    first = say(chat, "a").completion
    assert first.finish_reason == "context"
    second = say(chat, "b").completion
    assert second.dropped_messages == 2
    assert prompt_of(desk) == "<|user|>b\n<|go|>"


def test_a_summary_stands_in_place_of_what_was_left_out(desk: Desk) -> None:
    replies = [["one"], ["two"], ["Short ", "story."], ["three"], ["four"]]
    chat = desk.chat(replies, n_ctx=400, max_tokens=20, system=SYSTEM, overflow="summarize")
    say(chat, "a" * 120)
    say(chat, "b" * 60)
    third = say(chat, "c" * 150)
    assert SUMMARY_REQUEST in prompt_of(desk, 2)
    assert "a" * 120 in prompt_of(desk, 2)
    told = f"<|system|>{SYSTEM}\n\n{SUMMARY_HEAD}\nShort story.\n"
    kept = f"<|user|>{'b' * 60}\n<|go|>two\n"
    assert prompt_of(desk, 3) == f"{told}{kept}<|user|>{'c' * 150}\n<|go|>"
    assert third.completion.text == "three"
    assert third.completion.summary == "Short story."
    assert any("Short story." in text for text in warnings(third))
    fourth = say(chat, "d").completion
    assert fourth.text == "four"
    assert prompt_of(desk, 4).startswith(told)
    assert [turn.summary for turn in chat.session.turns] == ["", "", "Short story.", "Short story."]
    chat.session.undo(2)
    say(chat, "e")
    assert SUMMARY_HEAD not in prompt_of(desk)


@pytest.mark.parametrize(
    ("newest", "said"),
    [(470, "s" * 60), (300, "s" * 200)],  # no room for any; room for one, but not for this
)
def test_a_message_beside_which_no_summary_fits_is_answered_without(
    desk: Desk, newest: int, said: str
) -> None:
    chat = desk.chat([["one"], [said], ["two"]], n_ctx=512, max_tokens=20, overflow="summarize")
    say(chat, "a" * 200)
    answered = say(chat, "b" * newest)
    assert answered.completion.summary == ""
    assert answered.completion.dropped_messages == 2
    assert any("left out" in text for text in warnings(answered))
    assert prompt_of(desk).endswith(f"<|user|>{'b' * newest}\n<|go|>")


def test_what_is_too_long_for_one_summary_is_summed_up_in_steps(desk: Desk) -> None:
    chat = desk.chat([["fine"]], n_ctx=512, max_tokens=20, overflow="summarize", overflow_headroom="0.6")
    for letter in "abcd":
        say(chat, letter * 100)
    before = len(desk.engines[-1].prompts)
    answered = say(chat, "e" * 100)
    *asked, last = (prompt_of(desk, n) for n in range(before, len(desk.engines[-1].prompts)))
    assert len(asked) > 1
    assert answered.completion.dropped_messages == 8
    assert all(len(prompt) + 512 // 8 <= 512 for prompt in asked)
    for letter in "abcd":
        assert sum(letter * 100 in prompt for prompt in asked) == 1
    assert all(SUMMARY_HEAD in prompt for prompt in (*asked[1:], last))
    assert SUMMARY_HEAD not in asked[0]


def test_answering_again_writes_no_second_summary(desk: Desk) -> None:
    chat = desk.chat([["fine"]], n_ctx=512, max_tokens=20, overflow="summarize")
    for letter in "abc":
        say(chat, letter * 150)
    turns, prompts = chat.session.turns, len(desk.engines[-1].prompts)
    assert turns[-1].summary == "fine"
    again = Answered(tuple(chat.regenerate()))
    assert len(desk.engines[-1].prompts) == prompts + 1
    assert prompt_of(desk) == prompt_of(desk, prompts - 1)
    assert (again.completion.dropped_messages, again.completion.summary) == (2 * turns[-1].left_out, "fine")
    assert warnings(again) == []


def test_stopped_while_it_sums_up_takes_the_message_back(desk: Desk) -> None:
    button = Stop()
    chat = desk.chat([["fi", "ne"]], button, n_ctx=512, max_tokens=20, overflow="summarize")
    say(chat, "a" * 150)
    say(chat, "b" * 150)
    turns, prompts = chat.session.turns, len(desk.engines[-1].prompts)
    for event in chat.say("c" * 150):
        if isinstance(event, PrefillProgress) and len(desk.engines[-1].prompts) == prompts + 1:
            button.press()
        assert not (isinstance(event, Notice) and "left out" in event.text)
    assert chat.session.turns == turns
    assert say(chat, "d").completion.dropped_messages == 0


@pytest.mark.parametrize("policy", ["drop", "summarize"])
def test_messages_come_back_in_a_larger_context(desk: Desk, policy: str) -> None:
    chat = desk.chat([["fine"]], n_ctx=512, max_tokens=20, overflow=policy, overflow_headroom="0.1")
    for letter in "abcdefgh":
        say(chat, letter * 120)
    left_out = chat.session.turns[-1].left_out
    assert left_out > 3
    chat.change("n_ctx", "1024")
    list(chat.switch(None))
    middle = say(chat, "i")
    if policy == "drop":
        assert 0 < middle.completion.dropped_messages < 2 * left_out
    else:  # a summary stands for all or nothing
        assert middle.completion.dropped_messages == 2 * left_out
    chat.change("n_ctx", "4096")
    list(chat.switch(None))
    whole = say(chat, "j")
    assert (whole.completion.dropped_messages, whole.completion.summary) == (0, "")
    assert prompt_of(desk).startswith("<|user|>" + "a" * 120)
    assert any("again" in text for text in whole.notices("info"))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=30),
    capacity=st.integers(40, 200),
    headroom=st.floats(0, 0.9),
    larger=st.integers(1, 3),
)
def test_nothing_goes_to_and_fro(lengths: list[int], capacity: int, headroom: float, larger: int) -> None:
    """While a conversation only goes on, the window moves forward; in a larger context it is as if new."""

    def count(messages: Sequence[Message]) -> int:
        return sum(3 + len(message.content) for message in messages)

    def moved(window: Window, room: Room, conversation: Conversation) -> Window:
        window = widened(conversation, window, room, count)
        return Window(left_out_to_fit(conversation, window, room, count))

    room = Room(capacity, capacity // 4, int(capacity * headroom))
    window = Window()
    for n in range(1, len(lengths)):
        said = tuple((Message("user", "x" * k), Message("assistant", "yes")) for k in lengths[: n - 1])
        conversation = Conversation("system", said, Message("user", "x" * lengths[n - 1]))
        after = moved(window, room, conversation)
        assert after.left_out >= window.left_out
        window = after
        wide = Room(larger * capacity, capacity // 4, int(capacity * headroom))
        assert moved(window, wide, conversation).left_out <= window.left_out
    huge = Room(10_000, 0)
    assert moved(window, huge, conversation) == Window()


def test_a_template_without_a_system_role_keeps_the_system_text_first(desk: Desk, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
        "{{ '<|go|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content | trim }}\n{% endfor %}<|go|>"
    )
    desk.chat_model = write_puppet(tmp_path / "folds.gguf", ["never said"], template=template).path
    for policy in ("drop", "summarize"):
        chat = desk.chat([["fine"]], n_ctx=512, max_tokens=20, system=SYSTEM, overflow=policy, watched=True)
        for number in range(9):
            text = f" message {number} {'x' * 100} "
            answered = say(chat, text)
            assert prompt_of(desk).startswith(f"<|user|>{SYSTEM}\n")
            assert prompt_of(desk).endswith(f"{text.strip()}\n<|go|>")
        assert answered.completion.dropped_messages > 0


@pytest.mark.parametrize("n", [1, 200, 10_000])
def test_any_bound_of_the_answer_in_the_smallest_context(desk: Desk, n: int) -> None:
    chat = desk.chat([["x"] * 600], n_ctx=256, max_tokens=n, system=SYSTEM, watched=True)
    for number in range(5):
        answered = say(chat, f"message {number}").completion
        assert answered.stats.generated_tokens >= min(n, 64)
        assert answered.kv.tokens <= answered.kv.capacity_tokens
        assert answered.context is not None
        assert answered.context.free_tokens >= 0


def test_a_model_that_thinks_too_long_writes_a_summary_all_the_same(desk: Desk) -> None:
    thinking = ["<think>", *["hm "] * 200, "</think>", "late"]
    replies = [["one"], ["two"], thinking, ["three"]]
    chat = desk.chat(replies, n_ctx=512, max_tokens=20, overflow="summarize")
    for letter in "abc":
        answered = say(chat, letter * 150)
    summary = answered.completion.summary
    assert summary
    assert "think" not in summary
    assert answered.completion.text == "three"


def test_a_summary_stays_where_more_is_dropped_and_goes_where_it_is_too_long(desk: Desk) -> None:
    chat = desk.chat([["fine"]], n_ctx=1024, max_tokens=20, system=SYSTEM)
    for letter in "abc":
        chat.session.add_turn(letter * 150, "fine", left_out=1, summary="S" * 200)
    dropped = say(chat, "d" * 400)
    assert dropped.completion.dropped_messages > 2
    assert dropped.completion.summary == "S" * 200
    assert "S" * 200 in prompt_of(desk)
    assert "S" * 200 not in "".join(warnings(dropped))
    chat.change("n_ctx", "256")
    list(chat.switch(None))
    small = say(chat, "e")
    assert small.completion.summary == ""
    assert any("summary" in text for text in warnings(small))
    assert prompt_of(desk).startswith(f"<|system|>{SYSTEM}\n<|user|>")
