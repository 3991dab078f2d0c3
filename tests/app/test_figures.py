"""Figures of whole requests on a set clock: exact, from the first event to the completion."""

from __future__ import annotations

import pytest

from llmrun.app.worker import Stop
from llmrun.events import Accepted, Finished, Loaded, Prefilled, PrefillProgress, Token

from tests.support.requests import Answered, Desk, ScriptClock


def test_the_worked_example(desk: Desk) -> None:
    """Arrivals 0.50, 0.60, 0.70, 0.81 s after the request; the last token is the unseen end of the turn."""
    clock = ScriptClock(prefill_s=0.5, tokens_s=(0.0, 0.1, 0.1, 0.11))
    stats = desk.run(["a", "b", "c"], "12345", clock=clock).completion.stats
    assert stats.generated_tokens == 4
    assert stats.ttft_s == pytest.approx(0.50)
    assert stats.total_s == pytest.approx(0.81)
    assert stats.generation_s == pytest.approx(0.31)
    assert stats.itl is not None
    assert stats.itl.mean_s == pytest.approx(0.31 / 3)
    assert stats.itl.max_s == pytest.approx(0.11)
    assert stats.generation_rate == pytest.approx(3 / 0.31)
    assert stats.prefill_s == pytest.approx(0.5)
    assert stats.prefill_rate == pytest.approx(stats.prefill_tokens / 0.5)
    assert stats.first_sample_s == pytest.approx(0.0)


def test_loading_is_no_part_of_the_first_token(desk: Desk) -> None:
    clock = ScriptClock(prefill_s=0.25, tokens_s=(0.05,))
    clock.clock.now_s = 40.0
    stats = desk.run(["a"], clock=clock).completion.stats
    assert stats.load_s == 40.0
    assert stats.ttft_s == pytest.approx(0.30)


def test_a_single_token_has_no_rate(desk: Desk) -> None:
    stats = desk.run(["a", "b"], clock=ScriptClock(tokens_s=(1.0,)), max_tokens=1).completion.stats
    assert (stats.generated_tokens, stats.generation_rate, stats.itl) == (1, None, None)


def test_reasoning_counts_for_the_first_token_but_not_for_the_answer(desk: Desk) -> None:
    reply = ["<think>", "plan", "</think>", "A", "B"]
    completion = desk.run(reply, clock=ScriptClock(tokens_s=(1, 1, 1, 1, 1, 1))).completion
    stats = completion.stats
    assert (completion.reasoning, completion.text) == ("plan", "AB")
    assert stats.ttft_s == 1.0
    assert stats.ttft_answer_s == 4.0
    assert stats.reasoning_tokens == 3
    assert stats.generated_tokens == 6


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
def test_the_cache_holds_all_but_the_last_token(desk: Desk, limit: int | None) -> None:
    completion = desk.run(["a", "b", "c", "d"], "prompt", max_tokens=limit).completion
    stats = completion.stats
    assert completion.kv.tokens == stats.prompt_tokens + stats.generated_tokens - 1
    assert completion.finish_reason == ("stop" if limit is None else "length")


def test_a_long_prompt_reports_each_slice(desk: Desk) -> None:
    """The last token is one of its own, as it is when the same prompt comes again."""
    answered = desk.run(["a"], "p" * 100, clock=ScriptClock(prefill_s=0.5), n_ubatch=32)
    steps = [event for event in answered.events if isinstance(event, PrefillProgress)]
    assert [(step.done, step.total) for step in steps] == [
        (0, 100),
        (32, 100),
        (64, 100),
        (96, 100),
        (99, 100),
        (100, 100),
    ]
    assert [step.elapsed_s for step in steps] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert answered.completion.stats.prefill_rate == 40.0


def test_events_come_in_order(desk: Desk) -> None:
    answered = desk.run(["a", "b"])
    kinds = [type(event) for event in answered.events]
    order = [Loaded, Accepted, PrefillProgress, Prefilled, Token, Finished]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
    assert kinds.count(Finished) == 1
    assert sum(token.n for token in answered.tokens) == answered.completion.stats.generated_tokens


def test_a_later_turn_evaluates_only_what_is_new(desk: Desk) -> None:
    chat = desk.chat([["first ", "answer"], ["second"]])
    one = Answered(tuple(chat.say("question"))).completion
    two = Answered(tuple(chat.say("another"))).completion
    assert one.stats.cached_tokens == 0
    assert one.prefix.miss_reason
    read_ahead = len("\n<|user|>")
    assert two.stats.cached_tokens == one.kv.tokens + read_ahead
    assert two.prefix.memory_tokens == two.stats.cached_tokens
    assert two.prefix.miss_reason == ""
    assert two.stats.prefill_tokens == len("another\n<|go|>")
    assert two.stats.prompt_tokens == two.stats.cached_tokens + two.stats.prefill_tokens
    chat.close()


def test_a_stopped_answer_stays_in_the_conversation(desk: Desk) -> None:
    stop = Stop()
    chat = desk.chat([["one ", "two ", "three"], ["next"]], stop)
    events = []
    for event in chat.say("go"):
        events.append(event)
        if isinstance(event, Token) and event.text == "one ":
            stop.press()
    stopped = Answered(tuple(events)).completion
    assert stopped.finish_reason == "interrupted"
    assert "one two three".startswith(stopped.text)
    assert stopped.text
    following = Answered(tuple(chat.say("more"))).completion
    assert following.text == "next"
    assert following.stats.cached_tokens > 0
    held = desk.engines[0].prompts[-1]
    said = b"".join(map(desk.engines[0].piece, held)).decode()
    assert said == f"<|user|>go\n<|go|>{stopped.text}\n<|user|>more\n<|go|>"
    chat.close()


def test_a_message_stopped_before_any_text_is_taken_back(desk: Desk) -> None:
    stop = Stop()
    chat = desk.chat([["said"], ["said"]], stop)
    events = chat.say("swallowed " * 100)
    for event in events:
        if isinstance(event, Accepted):
            stop.press()
    assert Answered(tuple(chat.say("kept"))).completion.text == "said"
    assert desk.last_prompt == "<|user|>kept\n<|go|>"
    chat.close()
