"""What every engine promises: the same tests over llama.cpp with a puppet and over the scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from llmrun.engine.api import (
    ContextParams,
    EndStep,
    Engine,
    Job,
    ModelParams,
    PrefillStep,
    State,
    Step,
    TokenStep,
)
from llmrun.engine.scripted import Script, scripted_factory
from llmrun.errors import PromptTooLong, UsageError

from tests.support.engines import GREEDY, by_sequence, open_llama, stop_after
from tests.support.puppet import GO, Puppet

REPLY = "Hello, world!"
N_CTX = 256

Open = Callable[..., Engine]


@dataclass(frozen=True)
class Kind:
    """Opens engines that answer `REPLY` and end, or that never end."""

    brief: Open
    endless: Open


@pytest.fixture(params=["llama", "scripted"])
def kind(request: pytest.FixtureRequest, puppet: Puppet, endless_puppet: Puppet) -> Iterator[Kind]:
    opened: list[Engine] = []

    def llama(model: Puppet, **params: Any) -> Engine:
        opened.append(open_llama(model.path, **({"n_ctx": N_CTX, "n_ubatch": 16} | params)))
        return opened[-1]

    def scripted(reply: list[str], **params: Any) -> Engine:
        script = Script([reply], specials=("<|end|>", GO))
        context = ContextParams(**({"n_ctx": N_CTX, "n_ubatch": 16} | params))
        opened.append(
            scripted_factory(script)(ModelParams("script"), context, lambda _: None, threading.Event())
        )
        return opened[-1]

    if request.param == "llama":
        yield Kind(lambda **p: llama(puppet, **p), lambda **p: llama(endless_puppet, **p))
    else:
        pieces = ["Hel", "lo", ", ", "wor", "ld", "!"]
        yield Kind(lambda **p: scripted(pieces, **p), lambda **p: scripted(["x"] * 5000, **p))
    for engine in opened:
        engine.close()


def prompt_of(engine: Engine, text: str = "") -> list[int]:
    return engine.tokenize(text + GO, add_special=False, parse_special=True)


def run(engine: Engine, prompt: list[int], max_tokens: int | None = None, seq: int = 0) -> list[Step]:
    return list(engine.run([Job(seq, prompt, GREEDY, max_tokens)]))


def check_books(engine: Engine, prompt: list[int], steps: list[Step], seq: int = 0) -> None:
    """The sequence holds p + n - 1 tokens: the last sampled one was never evaluated."""
    tokens, _ = by_sequence(steps)
    assert list(engine.held(seq)) == [*prompt, *tokens[seq][:-1]]


def test_an_answer_and_its_end(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "hi")
    steps = run(engine, prompt)
    tokens, ends = by_sequence(steps)
    assert ends == {0: "eog"}
    shown = [step.token for step in steps if isinstance(step, TokenStep) and not step.eog]
    assert b"".join(map(engine.piece, shown)).decode() == REPLY
    assert tokens[0][:-1] == shown
    assert engine.is_control(tokens[0][-1])
    check_books(engine, prompt, steps)


def test_prefill_is_told_from_nothing_to_all(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "x" * 40)
    prefill = [step for step in run(engine, prompt) if isinstance(step, PrefillStep)]
    assert prefill == [PrefillStep(0, done, 41, 0) for done in (0, 16, 32, 41)]


def test_what_is_held_is_reused_but_for_one_token(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "some words")
    first = run(engine, prompt)
    reply = by_sequence(first)[0][0]
    for next_prompt, reused in (
        (prompt, len(prompt) - 1),
        (prompt + reply + prompt, len(prompt)),
        (prompt[:5] + prompt_of(engine), 5),
    ):
        steps = run(engine, next_prompt, max_tokens=1)
        assert steps[0] == PrefillStep(0, 0, len(next_prompt) - reused, reused)
        check_books(engine, next_prompt, steps)


def test_the_whole_last_turn_is_reused(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "one")
    reply = by_sequence(run(engine, prompt))[0][0]
    following = [*prompt, *reply, *prompt_of(engine, "two")]
    steps = run(engine, following)
    assert isinstance(steps[0], PrefillStep)
    assert steps[0].reused == len(prompt) + len(reply) - 1
    check_books(engine, following, steps)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_bound_on_tokens(kind: Kind, n: int) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine)
    steps = run(engine, prompt, max_tokens=n)
    tokens, ends = by_sequence(steps)
    assert (len(tokens[0]), ends) == (n, {0: "length"})
    check_books(engine, prompt, steps)


def test_an_end_of_turn_at_the_bound_is_an_end_of_turn(kind: Kind) -> None:
    engine = kind.brief()
    n = len(by_sequence(run(engine, prompt_of(engine)))[0][0])
    assert by_sequence(run(engine, prompt_of(engine), max_tokens=n))[1] == {0: "eog"}


def test_a_stop_ends_at_once(kind: Kind) -> None:
    engine = kind.endless()
    prompt = prompt_of(engine)
    steps = list(stop_after(engine, [Job(0, prompt, GREEDY)], {0: 7}))
    tokens, ends = by_sequence(steps)
    assert (len(tokens[0]), ends) == (7, {0: "stopped"})
    check_books(engine, prompt, steps)


def test_a_stop_before_the_prompt_leaves_the_cache_alone(kind: Kind) -> None:
    engine = kind.endless()
    run(engine, prompt_of(engine, "kept"), max_tokens=1)
    held = list(engine.held(0))
    under_way = engine.run([Job(0, prompt_of(engine, "other"), GREEDY)])
    under_way.stop(0)
    assert by_sequence(list(under_way)) == ({0: []}, {0: "stopped"})
    assert list(engine.held(0)) == held


@pytest.mark.parametrize("spare", [0, 1, 20])
def test_the_window_is_filled_exactly(kind: Kind, spare: int) -> None:
    engine = kind.endless()
    assert engine.facts.n_ctx_seq == N_CTX
    prompt = prompt_of(engine, "x" * (N_CTX - 1 - spare))
    steps = run(engine, prompt)
    tokens, ends = by_sequence(steps)
    assert (len(tokens[0]), ends) == (spare + 1, {0: "context"})
    assert len(engine.held(0)) == N_CTX
    check_books(engine, prompt, steps)


def test_impossible_prompts_are_refused_and_change_nothing(kind: Kind) -> None:
    engine = kind.endless()
    run(engine, prompt_of(engine, "kept"), max_tokens=1)
    held = list(engine.held(0))
    with pytest.raises(PromptTooLong, match="257"):
        run(engine, prompt_of(engine, "x" * N_CTX))
    with pytest.raises(UsageError):
        run(engine, [])
    assert list(engine.held(0)) == held


@pytest.mark.parametrize("when", [PrefillStep(0, 0, 41, 0), PrefillStep(0, 16, 41, 0), "token"])
def test_an_interrupt_ends_it_until_taken_back(kind: Kind, when: Step | str) -> None:
    engine = kind.endless()
    prompt = prompt_of(engine, "x" * 40)
    steps: list[Step] = []
    for step in engine.run([Job(0, prompt, GREEDY)]):
        steps.append(step)
        if step == when or (when == "token" and isinstance(step, TokenStep)):
            engine.interrupt()
    tokens, ends = by_sequence(steps)
    assert ends == {0: "interrupted"}
    assert len(tokens[0]) == (1 if when == "token" else 0)
    done = max(step.done for step in steps if isinstance(step, PrefillStep))
    assert list(engine.held(0)) == prompt[:done]
    assert by_sequence(run(engine, prompt, max_tokens=3))[1] == {0: "interrupted"}
    engine.resume()
    assert by_sequence(run(engine, prompt, max_tokens=3))[1] == {0: "length"}


@pytest.mark.parametrize("kv_unified", [True, False])
def test_sequences_are_answered_side_by_side(kind: Kind, kv_unified: bool) -> None:
    engine = kind.brief(n_ctx=2 * N_CTX, n_seq=2, kv_unified=kv_unified)
    assert engine.facts.n_ctx_seq == (2 * N_CTX if kv_unified else N_CTX)
    prompts = [prompt_of(engine, "one"), prompt_of(engine, "another")]
    steps = list(engine.run([Job(seq, prompt, GREEDY) for seq, prompt in enumerate(prompts)]))
    tokens, ends = by_sequence(steps)
    assert ends == {0: "eog", 1: "eog"}
    for seq, prompt in enumerate(prompts):
        assert b"".join(map(engine.piece, tokens[seq][:-1])).decode() == REPLY
        check_books(engine, prompt, steps, seq)


def test_special_text_is_text_unless_asked(kind: Kind) -> None:
    engine = kind.brief()
    (go,) = engine.tokenize(GO, add_special=False, parse_special=True)
    assert engine.is_control(go)
    assert engine.piece(go).decode() == GO
    as_text = engine.tokenize(f"a{GO}b", add_special=False, parse_special=False)
    assert go not in as_text
    assert b"".join(map(engine.piece, as_text)).decode() == f"a{GO}b"


def test_closing_twice_does_nothing(kind: Kind) -> None:
    engine = kind.brief()
    engine.close()
    engine.close()


def test_slices_of_the_prefill_end_at_marks(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "x" * 40)
    steps = list(engine.run([Job(0, prompt, GREEDY, 1, marks=(0, 5, 5, 16, 30, 41, 99))]))
    done = [step.done for step in steps if isinstance(step, PrefillStep)]
    assert done == [0, 5, 16, 30, 41]
    check_books(engine, prompt, steps)


def test_a_saved_sequence_comes_back(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "some words")
    first = run(engine, prompt)
    held, state = list(engine.held(0)), engine.save(0)
    assert state.size_bytes == len(state.data) > 0
    run(engine, prompt_of(engine, "quite another thing"))
    assert engine.restore(0, state, held)
    assert list(engine.held(0)) == held
    assert engine.pos_min(0) == state.pos_min == 0
    again = [*held, *prompt_of(engine, "more")]
    steps = run(engine, again)
    assert isinstance(steps[0], PrefillStep)
    assert steps[0].reused == len(held)
    check_books(engine, again, steps)
    assert engine.restore(0, state, held)
    answers = [by_sequence(steps)[0][0] for steps in (first, run(engine, prompt))]
    assert len({b"".join(map(engine.piece, answer)) for answer in answers}) == 1


def test_a_state_moves_to_another_sequence_and_another_context(kind: Kind) -> None:
    engine = kind.brief(n_ctx=2 * N_CTX, n_seq=2)
    prompt = prompt_of(engine, "some words")
    run(engine, prompt, max_tokens=1)
    state = engine.save(0)
    larger = kind.brief(n_ctx=4 * N_CTX)
    for target, seq in ((engine, 1), (larger, 0)):
        assert target.restore(seq, state, prompt)
        steps = run(target, [*prompt, *prompt], seq=seq)
        assert isinstance(steps[0], PrefillStep)
        assert steps[0].reused == len(prompt)


def test_a_state_that_cannot_be_put_back_leaves_an_honest_sequence(kind: Kind) -> None:
    engine = kind.brief()
    prompt = prompt_of(engine, "some words")
    run(engine, prompt, max_tokens=1)
    whole, part = engine.save(0), engine.save(0, partial=True)
    cut = State(whole.data[: len(whole.data) // 2], 0)
    for state, tokens in (
        (cut, prompt),
        (State(bytearray(), 0), prompt),
        (State(bytearray(b"\xff" * 64), 0), prompt),
        (whole, prompt[:-1]),
        (whole, [*prompt, 1]),
        (whole, []),
        (whole, prompt * N_CTX),
        (part, [7, *prompt[1:]]),
    ):
        assert not engine.restore(0, state, tokens)
        held = list(engine.held(0))
        assert held in ([], prompt)
        outcome = run(engine, prompt, max_tokens=3)
        assert isinstance(outcome[0], PrefillStep)
        assert outcome[0].reused == max(0, len(held) - 1)
        check_books(engine, prompt, outcome)
        assert engine.restore(0, whole, prompt)


def test_a_larger_context_takes_over_what_every_sequence_holds(kind: Kind) -> None:
    engine = kind.brief(n_seq=2)
    prompts = [prompt_of(engine, "some words"), prompt_of(engine, "others")]
    for seq, prompt in enumerate(prompts):
        run(engine, prompt, seq=seq)
    held = [list(engine.held(seq)) for seq in (0, 1)]
    assert engine.resize(4 * N_CTX)
    assert engine.facts.n_ctx == engine.facts.n_ctx_seq == 4 * N_CTX
    assert [list(engine.held(seq)) for seq in (0, 1)] == held
    longer = [*held[1], *prompt_of(engine, "x" * 2 * N_CTX)]
    steps = run(engine, longer, seq=1)
    assert isinstance(steps[0], PrefillStep)
    assert steps[0].reused == len(held[1])
    check_books(engine, longer, steps, seq=1)
    engine.interrupt()
    assert run(engine, prompts[0])[-1] == EndStep(0, "interrupted")


def test_an_answer_that_ended_for_want_of_cells_goes_on_where_there_are_more(kind: Kind) -> None:
    engine = kind.endless()
    job = Job(0, prompt_of(engine, "x" * 50), GREEDY, 2 * N_CTX)
    running = engine.run([job])
    seen = []
    for step in running:
        if step == EndStep(0, "context"):
            assert engine.resize(4 * N_CTX)
            running.go_on(0)
        else:
            seen.append(step)
    tokens, ends = by_sequence(seen)
    assert ends == {0: "length"}
    assert len(tokens[0]) == 2 * N_CTX
    assert list(engine.held(0)) == [*job.prompt, *tokens[0][:-1]]
