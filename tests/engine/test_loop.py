"""The decode loop: several sequences, every way to end, and the books it keeps on the cache."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from llmrun.engine import loop
from llmrun.engine.api import Job, PrefillStep, SamplingParams, TokenStep
from llmrun.engine.llama import LlamaEngine
from llmrun.engine.sampler import Sampler
from llmrun.errors import DoesNotFit, PromptTooLong, UsageError

from tests.support.engines import (
    GREEDY,
    OpenTiny,
    by_sequence,
    distance,
    forget,
    open_llama,
    pos_max,
    run_one,
    stop_after,
)
from tests.support.puppet import Puppet
from tests.support.tiny import Arch

ARCHS: tuple[Arch, ...] = ("llama", "gemma3", "mamba")
SHARING: dict[str, dict[str, Any]] = {
    "unified": {"n_ctx": 768, "n_seq": 3, "kv_unified": True},
    "split": {"n_ctx": 768, "n_seq": 3, "kv_unified": False},
}
PROMPTS = [list(range(10, 90)), list(range(50, 53)), list(range(200, 240))]


def check_books(engine: LlamaEngine, jobs: list[Job], tokens: dict[int, list[int]]) -> None:
    """Each sequence holds its prompt and all sampled tokens but the last, by our books and the library's."""
    for job in jobs:
        held = list(engine.held(job.seq))
        assert held == [*job.prompt, *tokens[job.seq][:-1]]
        assert pos_max(engine, job.seq) == len(held) - 1


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("arch", ARCHS)
def test_three_together_say_what_each_says_alone(open_tiny: OpenTiny, arch: Arch, sharing: str) -> None:
    engine = open_tiny(arch, **SHARING[sharing])
    alone = []
    for prompt in PROMPTS:
        forget(engine)
        alone.append(run_one(engine, prompt, max_tokens=20).tokens)
    forget(engine)
    jobs = [Job(seq, prompt, GREEDY, 20) for seq, prompt in enumerate(PROMPTS)]
    tokens, ends = by_sequence(list(engine.run(jobs)))
    assert [tokens[seq] for seq in range(3)] == alone
    assert set(ends.values()) == {"length"}
    check_books(engine, jobs, tokens)


@pytest.mark.parametrize("sharing", SHARING)
def test_each_sequence_ends_in_its_own_way(puppet: Puppet, endless_puppet: Puppet, sharing: str) -> None:
    """One is stopped, one reaches its bound, one fills the window; each at its own time."""
    engine = open_llama(endless_puppet.path, **SHARING[sharing])
    go, letters = endless_puppet.go_token, endless_puppet.tokens
    filler = engine.tokenize("x" * 240, add_special=False, parse_special=False)
    jobs = [
        Job(0, [*filler, go], GREEDY),
        Job(1, [go], GREEDY, max_tokens=20),
        Job(2, [letters[3]], GREEDY),
    ]
    tokens, ends = by_sequence(list(stop_after(engine, jobs, {2: 10})))
    assert ends == {0: "context", 1: "length", 2: "stopped"}
    assert tokens[1] == list(letters[:20])
    assert tokens[2] == list(letters[4:14])
    assert tokens[0] == list(itertools.islice(itertools.cycle(letters), len(tokens[0])))
    check_books(engine, jobs, tokens)
    if sharing == "split":
        assert len(engine.held(0)) == engine.facts.n_ctx_seq == 256
    else:
        assert sum(len(engine.held(seq)) for seq in range(3)) == engine.facts.n_ctx == 768
    engine.close()


def test_an_end_of_turn_ends_one_sequence_only(puppet: Puppet) -> None:
    engine = open_llama(puppet.path, n_ctx=768, n_seq=3)
    jobs = [
        Job(0, [puppet.go_token], GREEDY),
        Job(1, [puppet.tokens[3]], GREEDY),
        Job(2, [puppet.go_token], GREEDY, max_tokens=2),
    ]
    steps = list(engine.run(jobs))
    tokens, ends = by_sequence(steps)
    assert ends == {0: "eog", 1: "eog", 2: "length"}
    assert tokens[0][:-1] == list(puppet.tokens)
    assert tokens[1][:-1] == list(puppet.tokens[4:])
    assert [s.token for s in steps if isinstance(s, TokenStep) and s.eog] == [tokens[1][-1], tokens[0][-1]]
    check_books(engine, jobs, tokens)
    engine.close()


class TestStop:
    def test_on_its_own_token_nothing_more_comes(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama")
        job = Job(0, PROMPTS[0], GREEDY)
        tokens, ends = by_sequence(list(stop_after(engine, [job], {0: 1})))
        assert (len(tokens[0]), ends[0]) == (1, "stopped")
        check_books(engine, [job], tokens)

    def test_during_its_prefill_the_rest_is_not_evaluated(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ubatch=16)
        run = engine.run([Job(0, PROMPTS[0], GREEDY, 5)])
        steps = []
        for step in run:
            steps.append(step)
            if isinstance(step, PrefillStep) and step.done == 32:
                run.stop(0)
        assert by_sequence(steps) == ({0: []}, {0: "stopped"})
        assert list(engine.held(0)) == PROMPTS[0][:32]

    def test_before_its_prefill_what_it_holds_stays(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ctx=768, n_seq=2)
        run_one(engine, PROMPTS[2], seq=1)
        run = engine.run([Job(0, PROMPTS[0], GREEDY, 3), Job(1, PROMPTS[1], GREEDY)])
        run.stop(1)
        tokens, ends = by_sequence(list(run))
        assert ends == {0: "length", 1: "stopped"}
        assert len(tokens[0]) == 3
        assert list(engine.held(1)) == PROMPTS[2]

    def test_asked_on_another_sequences_step_it_still_ends_once(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ctx=768, n_seq=3)
        jobs = [Job(seq, prompt, GREEDY, 30) for seq, prompt in enumerate(PROMPTS)]
        run = engine.run(jobs)
        steps = []
        for step in run:
            steps.append(step)
            if isinstance(step, TokenStep) and step.seq == 1 and len(steps) > 20:
                run.stop(0)
                run.stop(2)
        tokens, ends = by_sequence(steps)
        assert ends == {0: "stopped", 1: "length", 2: "stopped"}
        check_books(engine, jobs, tokens)

    def test_a_stopped_sequence_goes_on_where_it_was(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama")
        whole = run_one(engine, PROMPTS[0], max_tokens=12).tokens
        forget(engine)
        list(stop_after(engine, [Job(0, PROMPTS[0], GREEDY)], {0: 5}))
        rest = run_one(engine, [*PROMPTS[0], *whole[:5]], max_tokens=7)
        assert rest.reused == len(PROMPTS[0]) + 4
        assert rest.tokens == whole[5:]


class TestWindowLimits:
    @pytest.mark.parametrize("arch", ARCHS)
    @pytest.mark.parametrize("spare", [0, 1, 2, 30])
    def test_the_window_is_filled_exactly(self, open_tiny: OpenTiny, arch: Arch, spare: int) -> None:
        engine = open_tiny(arch, n_ctx=256, n_ubatch=32)
        prompt = [10 + i % 200 for i in range(256 - spare)]
        outcome = run_one(engine, prompt, max_tokens=None)
        assert outcome.reason == "context"
        assert len(outcome.tokens) == spare + 1
        assert len(engine.held(0)) == 256 == pos_max(engine) + 1

    def test_a_prompt_beyond_the_window_is_refused_before_anything_is_evaluated(
        self, open_tiny: OpenTiny
    ) -> None:
        engine = open_tiny("llama", n_ctx=512, n_seq=2, kv_unified=False)
        run_one(engine, PROMPTS[1], max_tokens=2)
        held = list(engine.held(0))
        jobs = [Job(0, PROMPTS[0], GREEDY, 1), Job(1, [10] * (engine.facts.n_ctx_seq + 1), GREEDY)]
        with pytest.raises(PromptTooLong, match="257"):
            next(iter(engine.run(jobs)))
        assert list(engine.held(0)) == held

    def test_an_empty_prompt_is_refused(self, open_tiny: OpenTiny) -> None:
        with pytest.raises(UsageError):
            next(iter(open_tiny("llama").run([Job(0, [], GREEDY)])))

    def test_no_tokens_asked_evaluates_the_prompt_only(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama")
        outcome = run_one(engine, PROMPTS[0], max_tokens=0)
        assert (outcome.tokens, outcome.reason) == ([], "length")
        assert list(engine.held(0)) == PROMPTS[0]

    def test_sequences_that_share_cells_end_when_the_others_took_them(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ctx=256, n_seq=2)
        jobs = [Job(0, [10] * 200, GREEDY, 5), Job(1, [20] * 100, GREEDY)]
        tokens, ends = by_sequence(list(engine.run(jobs)))
        assert ends == {0: "length", 1: "context"}
        assert len(tokens[0]) == 5
        assert tokens[1] == []

    @pytest.mark.parametrize(("n_ctx", "n_batch", "n_ubatch"), [(1, 2048, 512), (0, 64, 64), (300, 1, 1)])
    def test_the_facts_are_what_the_engine_made_of_the_wishes(
        self, open_tiny: OpenTiny, n_ctx: int, n_batch: int, n_ubatch: int
    ) -> None:
        facts = open_tiny("llama", n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch).facts
        assert facts.n_ctx == facts.n_ctx_seq == {1: 256, 0: 4096, 300: 512}[n_ctx]
        assert 0 < facts.n_ubatch <= facts.n_batch <= facts.n_ctx


class TestSlices:
    # FA rounds differently for each slice length, so it is off where numbers are compared
    @pytest.mark.parametrize("arch", ARCHS)
    @pytest.mark.parametrize(("n_batch", "n_ubatch"), [(1, 1), (7, 64), (64, 7), (512, 512)])
    def test_the_way_a_prompt_is_cut_changes_nothing(
        self, open_tiny: OpenTiny, arch: Arch, n_batch: int, n_ubatch: int
    ) -> None:
        exact = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
        usual = run_one(open_tiny(arch, **exact), PROMPTS[0], max_tokens=5)
        engine = open_tiny(arch, **exact, n_batch=n_batch, n_ubatch=n_ubatch)
        cut = run_one(engine, PROMPTS[0], max_tokens=5)
        assert cut.tokens == usual.tokens
        assert distance(cut.logits, usual.logits) < 2e-2  # the reason is in test_reuse_law.py

    def test_progress_counts_every_slice(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ubatch=32)
        run_one(engine, PROMPTS[0][:10])
        steps = [s for s in engine.run([Job(0, PROMPTS[0], GREEDY, 1)]) if isinstance(s, PrefillStep)]
        assert steps == [PrefillStep(0, done, 70, 10) for done in (0, 32, 64, 70)]

    def test_more_sequences_than_a_batch_was_to_take(self, open_tiny: OpenTiny) -> None:
        engine = open_tiny("llama", n_ctx=768, n_seq=3, n_batch=1)
        tokens, _ = by_sequence(list(engine.run([Job(s, PROMPTS[s], GREEDY, 4) for s in range(3)])))
        assert [len(tokens[s]) for s in range(3)] == [4, 4, 4]


class TestSamplersAreFreed:
    @pytest.fixture
    def alive(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        """Identities of samplers that were made and not closed."""
        alive: set[int] = set()

        class Counted(Sampler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                alive.add(id(self))

            def close(self) -> None:
                super().close()
                alive.discard(id(self))

        monkeypatch.setattr(loop, "Sampler", Counted)
        return alive

    def jobs(self, *samplings: SamplingParams) -> list[Job]:
        return [Job(seq, PROMPTS[seq], sampling, 4) for seq, sampling in enumerate(samplings)]

    def test_when_a_run_is_never_iterated(self, open_tiny: OpenTiny, alive: set[int]) -> None:
        open_tiny("llama").run(self.jobs(GREEDY))
        assert not alive

    def test_when_it_is_left_early(self, open_tiny: OpenTiny, alive: set[int]) -> None:
        steps = iter(open_tiny("llama", n_ctx=768, n_seq=2).run(self.jobs(GREEDY, GREEDY)))
        next(steps)
        assert len(alive) == 2
        steps.close()  # type: ignore[attr-defined]  # the protocol promises an iterator, this is a generator
        assert not alive

    def test_when_it_ends(self, open_tiny: OpenTiny, alive: set[int]) -> None:
        list(open_tiny("llama", n_ctx=768, n_seq=2).run(self.jobs(GREEDY, GREEDY)))
        assert not alive

    def test_when_a_later_job_is_refused(self, open_tiny: OpenTiny, alive: set[int]) -> None:
        wrong = SamplingParams(logit_bias=((300, 1.0),))
        with pytest.raises(UsageError, match="300"):
            list(open_tiny("llama", n_ctx=768, n_seq=2).run(self.jobs(GREEDY, wrong)))
        assert not alive


def test_memory_that_runs_out_on_the_way(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that finds no memory (GGML_STATUS_ALLOC_FAILED) leaves books and library alike."""
    engine = open_tiny("llama")
    monkeypatch.setattr(engine._context._lib, "llama_decode", lambda *_: -2)
    with pytest.raises(DoesNotFit, match="memory"):
        list(engine.run([Job(0, [3, 4, 5], GREEDY, 2)]))
    assert list(engine.held(0)) == []
    monkeypatch.undo()
    assert run_one(engine, [3, 4, 5], max_tokens=2).reason == "length"
