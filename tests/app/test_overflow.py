"""A conversation that outgrows its context goes on, and says what the model no longer sees."""

from __future__ import annotations

import pytest

from llmrun.app.chat import Chat
from llmrun.chat.overflow import SUMMARY_HEAD, SUMMARY_REQUEST
from llmrun.errors import PromptTooLong
from llmrun.events import Notice

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
        [["fine"]], None, n_ctx=512, max_tokens=20, system=SYSTEM, watched=False, n_ctx_train=8192, **flags
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
