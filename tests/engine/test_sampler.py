"""The sampler chain, by what it makes the engine say."""

from __future__ import annotations

import math

import pytest

from llmrun.engine.api import Job, SamplingParams, TokenStep
from llmrun.engine.llama import LlamaEngine
from llmrun.errors import UsageError

from tests.support.engines import GREEDY, OpenTiny, forget, last_logits, open_llama, run_one
from tests.support.puppet import Puppet
from tests.support.vocab import EOS

PROMPT = list(range(10, 60))


def say(engine: LlamaEngine, sampling: SamplingParams, prompt: list[int] = PROMPT, n: int = 24) -> list[int]:
    forget(engine)
    return run_one(engine, prompt, n, sampling).tokens


def test_a_seed_repeats_its_draws_and_others_draw_otherwise(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama")
    answers = {seed: say(engine, SamplingParams(seed=seed)) for seed in range(5)}
    assert {seed: say(engine, SamplingParams(seed=seed)) for seed in range(5)} == answers
    assert len({tuple(tokens) for tokens in answers.values()}) == 5


def test_without_a_seed_one_is_drawn(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama")
    assert len({tuple(say(engine, SamplingParams(temperature=2.0))) for _ in range(4)}) > 1


def test_temperature_0_is_greedy_whatever_the_seed(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama")
    tokens = say(engine, GREEDY)
    assert all(say(engine, SamplingParams(temperature=0, seed=seed)) == tokens for seed in range(4))
    outcome = run_one(engine, [*PROMPT, *tokens])
    assert outcome.logits[outcome.tokens[0]] == max(outcome.logits)


@pytest.mark.parametrize(
    "narrow", [SamplingParams(top_k=1), SamplingParams(min_p=1.0), SamplingParams(top_p=1e-6)]
)
def test_one_candidate_left_equals_greedy(open_tiny: OpenTiny, narrow: SamplingParams) -> None:
    engine = open_tiny("llama")
    assert say(engine, narrow) == say(engine, GREEDY)


class TestLogitBias:
    def test_minus_infinity_forbids_a_token(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama")
        forget(engine)
        outcome = run_one(engine, PROMPT)
        best, second = sorted(range(300), key=outcome.logits.__getitem__, reverse=True)[:2]
        assert outcome.tokens == [best]
        bias = ((best, float("-inf")),)
        assert say(engine, SamplingParams(temperature=0, logit_bias=bias), n=1) == [second]
        for seed in range(5):
            assert best not in say(engine, SamplingParams(seed=seed, temperature=2.0, logit_bias=bias))

    def test_a_large_bias_forces_a_token(self, open_tiny: OpenTiny) -> None:
        forced = SamplingParams(seed=1, logit_bias=((77, 1000.0),))
        assert say(open_tiny("llama"), forced, n=5) == [77] * 5

    @pytest.mark.parametrize("token", [-1, 300])
    def test_a_token_the_vocabulary_lacks_is_refused(self, open_tiny: OpenTiny, token: int) -> None:
        with pytest.raises(UsageError, match=f"{token}"):
            say(open_tiny("llama"), SamplingParams(logit_bias=((token, 1.0),)))


def test_ignore_eos_never_ends_the_turn(puppet: Puppet) -> None:
    engine = open_llama(puppet.path, n_ctx=256)
    ending = say(engine, GREEDY, [puppet.go_token], n=40)
    assert ending[-1] == EOS
    assert len(ending) == len(puppet.tokens) + 1
    going_on = say(engine, SamplingParams(temperature=0, ignore_eos=True), [puppet.go_token], n=40)
    assert len(going_on) == 40
    assert EOS not in going_on
    engine.close()


class TestPenalties:
    def test_a_repeat_penalty_breaks_a_loop(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("gemma3")
        looping = say(engine, GREEDY, n=60)
        freer = say(engine, SamplingParams(temperature=0, repeat_penalty=2.0), n=60)
        assert len(set(freer)) > len(set(looping))

    @pytest.mark.parametrize(
        "penalty",
        [
            SamplingParams(temperature=0, presence_penalty=100.0),
            SamplingParams(temperature=0, frequency_penalty=100.0),
        ],
    )
    def test_what_the_prompt_ends_with_counts(self, endless_puppet: Puppet, penalty: SamplingParams) -> None:
        a, b = endless_puppet.tokens[:2]
        engine = open_llama(endless_puppet.path, n_ctx=256)
        assert say(engine, penalty, [a], n=1) == [b]
        assert say(engine, penalty, [b, a], n=1) != [b]
        engine.close()

    @pytest.mark.parametrize(("last_n", "penalised"), [(3, True), (2, False), (0, False)])
    def test_only_the_last_tokens_count(self, endless_puppet: Puppet, last_n: int, penalised: bool) -> None:
        a, b, c = endless_puppet.tokens[:3]
        engine = open_llama(endless_puppet.path, n_ctx=256)
        penalty = SamplingParams(temperature=0, presence_penalty=100.0, repeat_last_n=last_n)
        assert (say(engine, penalty, [b, c, a], n=1) != [b]) is penalised
        engine.close()

    def test_no_penalty_changes_nothing(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("gemma3")
        neutral = SamplingParams(temperature=0, repeat_last_n=256)
        assert say(engine, neutral) == say(engine, GREEDY)


def test_forced_tokens_come_next_and_sampling_goes_on_after_them(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama")
    free = run_one(engine, PROMPT, 6).tokens
    run = engine.run([Job(0, PROMPT, GREEDY, 6)])
    tokens = []
    for step in run:
        if isinstance(step, TokenStep):
            tokens.append(step.token)
            if len(tokens) == 2:
                run.force(0, free[:2])
    assert tokens[:4] == [*free[:2], *free[:2]]
    assert list(engine.held(0)) == [*PROMPT, *tokens[:-1]]
    forget(engine)
    assert tokens[4:] == run_one(engine, [*PROMPT, *tokens[:4]], 2).tokens


def test_log_probabilities_are_those_of_the_logits(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama")
    run = engine.run([Job(0, PROMPT, GREEDY, 3, logprobs=4)])
    seen = [(step, last_logits(engine)) for step in run if isinstance(step, TokenStep)]
    assert len(seen) == 3
    for step, logits in seen:
        assert step.logprobs is not None
        total = math.log(sum(math.exp(x - max(logits)) for x in logits)) + max(logits)
        best = sorted(range(len(logits)), key=lambda token: -logits[token])[:4]
        assert [token for token, _ in step.logprobs.top] == best
        assert step.token == best[0]
        for token, logprob in step.logprobs.top:
            assert logprob == pytest.approx(logits[token] - total, abs=1e-5)
        assert step.logprobs.logprob == step.logprobs.top[0][1]
