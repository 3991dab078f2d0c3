from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.chat import Chat, Totals
from llmrun.engine.api import ContextParams, Engine, ModelParams
from llmrun.errors import DoesNotFit, ModelNotFound, NotAModel, UsageError
from llmrun.events import Event, Finished, Loaded, Measured, Notice
from llmrun.journal.sessions import SessionStore

from tests.support.requests import Answered, Desk


def say(chat: Chat, text: str) -> Answered:
    return Answered(tuple(chat.say(text)))


def prompts(desk: Desk) -> list[str]:
    """The text of every prompt, special tokens by name."""
    engine = desk.engines[-1]
    return [b"".join(map(engine.piece, prompt)).decode() for prompt in engine.prompts]


def test_a_conversation_grows_and_reuses_what_it_holds(desk: Desk) -> None:
    chat = desk.chat([["one"], ["two"]])
    say(chat, "a")
    second = say(chat, "b").completion
    assert prompts(desk)[1] == prompts(desk)[0] + "one\n<|user|>b\n<|go|>"
    assert second.stats.cached_tokens == second.prefix.memory_tokens > 0
    assert second.stats.prefill_tokens == second.stats.prompt_tokens - second.stats.cached_tokens
    assert [(turn.user, turn.answer) for turn in chat.session.turns] == [("a", "one"), ("b", "two")]


def test_undo_gives_the_prompt_of_a_conversation_that_never_had_the_turn(desk: Desk) -> None:
    chat = desk.chat([["one"], ["two"], ["three"]])
    say(chat, "a")
    say(chat, "b")
    chat.session.undo()
    third = say(chat, "c").completion
    assert prompts(desk)[2] == prompts(desk)[1].replace("b", "c")
    assert third.stats.cached_tokens > 0


def test_an_answer_again_takes_the_place_of_the_last_one(desk: Desk) -> None:
    chat = desk.chat([["one"], ["other"]])
    say(chat, "a")
    again = Answered(tuple(chat.regenerate()))
    assert prompts(desk)[0] == prompts(desk)[1]
    assert again.completion.stats.prefill_tokens == 1
    assert [turn.answer for turn in chat.session.turns] == ["other"]


def test_answering_again_needs_a_message(desk: Desk) -> None:
    with pytest.raises(UsageError):
        desk.chat([["one"]]).regenerate()


def test_a_changed_setting_holds_from_the_next_answer(desk: Desk) -> None:
    chat = desk.chat([["one", " two", " three"]])
    assert not chat.change("max_tokens", "2")
    first = say(chat, "a").completion
    assert (first.text, first.finish_reason) == ("one two", "length")
    assert first.settings["max_tokens"] == 2
    assert chat.settings.source("max_tokens") == "/set"


def test_a_setting_of_loading_waits_for_the_next_load(desk: Desk) -> None:
    chat = desk.chat([["one"]], n_ctx=1024)
    assert chat.change("n_ctx", "512")
    assert chat.kv.capacity_tokens == 1024
    list(chat.switch(None))
    assert chat.kv.capacity_tokens == 512


@pytest.mark.parametrize(
    ("name", "value"), [("temprature", "1"), ("temperature", "hot"), ("system", "x"), ("model", "x")]
)
def test_a_wrong_change_changes_nothing(desk: Desk, name: str, value: str) -> None:
    chat = desk.chat([["one"]])
    before = dict(chat.settings.values)
    with pytest.raises(UsageError):
        chat.change(name, value)
    assert dict(chat.settings.values) == before
    assert say(chat, "a").completion.text == "one"


def test_another_model_goes_on_with_the_conversation(desk: Desk) -> None:
    chat = desk.chat([["one"]])
    say(chat, "a")
    events: list[Event] = list(chat.switch(str(desk.chat_model)))
    assert any(isinstance(event, Loaded) for event in events)
    assert len(desk.engines) == 2
    say(chat, "b")
    assert prompts(desk)[0].startswith("<|user|>a\n<|go|>one\n<|user|>b\n")


def test_a_model_that_is_not_there_leaves_the_old_one_open(desk: Desk, tmp_path: Path) -> None:
    chat = desk.chat([["one"]])
    say(chat, "a")
    with pytest.raises(ModelNotFound):
        list(chat.switch(str(tmp_path / "none.gguf")))
    assert chat.model.path == str(desk.chat_model)
    assert len(desk.engines) == 1  # so that a misspelt name costs neither a load nor what was evaluated
    assert say(chat, "b").completion.stats.cached_tokens > 0


def test_a_model_that_cannot_be_opened_gives_way_to_the_old_one(desk: Desk, tmp_path: Path) -> None:
    chat = desk.chat([["one"]])
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with pytest.raises(NotAModel):
        list(chat.switch(str(broken)))
    assert chat.model.path == str(desk.chat_model)
    assert say(chat, "a").completion.text == "one"


def test_settings_that_do_not_load_give_way_to_those_that_did(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = desk.chat([["one"]], n_ctx=1024)
    engine = chat._factory
    assert engine is not None

    def small_machine(model: ModelParams, context: ContextParams, *rest: Any) -> Engine:
        if context.n_ctx > 2048:
            raise DoesNotFit("too large")
        return engine(model, context, *rest)

    monkeypatch.setattr(chat, "_factory", small_machine)
    chat.change("n_ctx", "4096")
    with pytest.raises(DoesNotFit):
        list(chat.switch(None))
    assert chat.kv.capacity_tokens == 1024
    assert say(chat, "a").completion.text == "one"
    assert chat.settings.source("n_ctx") != "/set"


def test_a_turn_names_the_model_that_answered(desk: Desk, tmp_path: Path) -> None:
    chat = desk.chat([["one"]])
    store = SessionStore(tmp_path / "d", lambda: datetime.now(UTC))
    chat.session = store.create("s", model="another", system="")
    say(chat, "a")
    assert store.read("s").turns[0].model == store.read("s").model == str(desk.chat_model)
    chat.session.close()


def test_a_failed_message_is_not_part_of_the_conversation(desk: Desk) -> None:
    chat = desk.chat([["one"]], n_ctx=256)
    with pytest.raises(Exception, match="the context holds"):
        say(chat, "x" * 500)
    assert chat.session.turns == ()
    assert say(chat, "a").completion.text == "one"


def test_sums_are_those_of_the_answers(desk: Desk) -> None:
    chat = desk.chat([["one", " two"], ["three"]])
    done = [say(chat, "a").completion, say(chat, "b").completion]
    assert chat.totals.answers == 2
    assert chat.totals.generated_tokens == sum(c.stats.generated_tokens for c in done)
    assert chat.totals.prompt_tokens == sum(c.stats.prompt_tokens for c in done)
    assert chat.totals.cached_tokens == done[1].stats.cached_tokens
    first = Totals().plus(done[0])
    assert (first.prefill_rate, first.generation_rate) == (
        done[0].stats.prefill_rate,
        done[0].stats.generation_rate,
    )


def test_what_was_stopped_early_does_not_distort_the_rates(desk: Desk) -> None:
    done = say(desk.chat([["one", " two", " three"]]), "a").completion
    before = Totals().plus(done)
    while_reading = replace(done.stats, prefill_complete=False, generated_tokens=0, generation_s=0.0)
    after = before.plus(replace(done, stats=while_reading))
    assert after.answers == 2
    assert (after.prefill_rate, after.generation_rate) == (before.prefill_rate, before.generation_rate)


def test_a_reasoning_block_is_closed_when_its_budget_is_used_up(desk: Desk) -> None:
    reply = ["<think>", *(f" t{i}" for i in range(50)), "</think>", "never"]
    done = desk.run(reply, think_budget=5).completion
    assert done.stats.reasoning_tokens >= 5
    assert done.reasoning == "t0 t1 t2 t3"
    assert done.text.startswith("t4 t5")  # the script goes on; a model would now answer


def test_a_budget_that_is_not_used_up_changes_nothing(desk: Desk) -> None:
    reply = ["<think>", " a", "</think>", "answer"]
    assert desk.run(reply, think_budget=30).completion.text == desk.run(reply).completion.text == "answer"


def test_a_turn_that_cannot_be_saved_is_a_warning(desk: Desk, tmp_path: Path) -> None:
    chat = desk.chat([["one"]])
    store = SessionStore(tmp_path / "d", lambda: datetime.now(UTC))
    chat.session = store.create("s", model="", system="")
    assert chat.session.path is not None
    chat.session.path.unlink()
    events = tuple(chat.say("a"))
    assert any(isinstance(e, Finished) for e in events)
    warnings = [e.text for e in events if isinstance(e, Notice) and e.level == "warning"]
    assert any("not saved" in text for text in warnings)
    assert chat.session.turns[0].answer == "one"


def test_nobody_watching_means_no_measurements_on_the_way(desk: Desk) -> None:
    assert not [e for e in desk.run(["a"] * 20).events if isinstance(e, Measured)]
