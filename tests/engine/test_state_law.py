"""The reuse law with states: whatever is put back, the logits are those of a cold context.

Random edits of a prompt, as in test_reuse_law.py, but before each run the longest way is taken that
checkpoints of the live sequence or copies of earlier ones offer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.engine.api import Job, PrefillStep, State, TokenStep
from llmrun.engine.llama import LlamaEngine
from llmrun.prefix.checkpoints import Checkpoint, best_way, marks, still_valid

from tests.engine.test_reuse_law import EDITS, KINDS, Edit, params, random_tokens
from tests.support.engines import GREEDY, OpenTiny, distance, forget, last_logits, run_one

CUTS = (25, 60, 130, 260)


@dataclass
class Live:
    """The sequence of an engine with the checkpoints taken on it."""

    engine: LlamaEngine
    checkpoints: list[Checkpoint[State]] = field(default_factory=list)

    def way(self, prompt: list[int]) -> int:
        engine = self.engine
        held = list(engine.held(0))
        way = best_way(
            held,
            prompt,
            pos_min=engine.pos_min(0),
            checkpoints=self.checkpoints,
            kind=engine.facts.memory,
        )
        if way.checkpoint is not None:
            assert engine.restore(0, way.checkpoint.handle, held[: way.checkpoint.position])
        return way.tokens

    def run(self, prompt: list[int], n: int) -> tuple[list[float], int]:
        """Logits behind the prompt, and how much of it was reused."""
        engine, held = self.engine, list(self.engine.held(0))
        logits: list[float] = []
        reused = -1
        for step in engine.run([Job(0, prompt, GREEDY, n, marks=marks(len(prompt), 16, CUTS))]):
            match step:
                case PrefillStep():
                    if step.done == 0:
                        reused = step.reused
                        self.checkpoints = still_valid(self.checkpoints, held, prompt[:reused])
                    position = reused + step.done
                    if position in marks(len(prompt), 16, CUTS, reused=reused):
                        state = engine.save(0, partial=True)
                        self.checkpoints.append(Checkpoint(position, state.pos_min, state.size_bytes, state))
                case TokenStep():
                    logits = logits or last_logits(engine)
        return logits, reused


@pytest.mark.parametrize("name", KINDS)
def test_a_way_through_checkpoints_gives_the_logits_of_a_cold_context(open_tiny: OpenTiny, name: str) -> None:
    arch, swa_full, kind, tolerance = KINDS[name]
    warm = open_tiny(arch, copy=2, **params(swa_full))
    cold = open_tiny(arch, copy=1, **params(swa_full))
    assert warm.facts.memory == kind

    @settings(max_examples=20, deadline=None, database=None)
    @given(
        first=st.builds(random_tokens, st.integers(0, 1000), st.sampled_from([30, 100, 300, 450])),
        edits=st.lists(st.tuples(EDITS, st.integers(1, 40)), min_size=1, max_size=4),
    )
    def law(first: list[int], edits: list[tuple[Edit, int]]) -> None:
        forget(warm)
        live = Live(warm)
        live.run(first, 20)
        prompt = first
        for edit, n in edits:
            prompt = edit.apply(prompt)
            expected = live.way(prompt)
            logits, reused = live.run(prompt, n)
            assert reused == expected < len(prompt)
            forget(cold)
            assert distance(logits, run_one(cold, prompt).logits) < tolerance

    law()


@pytest.mark.parametrize("name", KINDS)
def test_a_copy_gives_the_logits_of_a_cold_context(open_tiny: OpenTiny, name: str) -> None:
    """Sequences are left for others and come back from copies, moved into another context on the way."""
    arch, swa_full, kind, tolerance = KINDS[name]
    warm = open_tiny(arch, copy=2, **params(swa_full))
    cold = open_tiny(arch, copy=1, **params(swa_full))
    larger = open_tiny(arch, **{**params(swa_full), "n_ctx": 1536})

    @settings(max_examples=10, deadline=None, database=None)
    @given(
        lengths=st.lists(st.sampled_from([1, 30, 100, 300, 450]), min_size=2, max_size=3),
        edit=EDITS,
        n=st.integers(1, 60),
    )
    def law(lengths: list[int], edit: Edit, n: int) -> None:
        copies = []
        forget(warm)
        for seed, length in enumerate(lengths):
            run_one(warm, random_tokens(seed, length), max_tokens=n)
            copies.append((list(warm.held(0)), warm.save(0)))
        for held, state in copies:
            assert state.size_bytes == len(state.data)
            for engine in (warm, larger):
                for prompt in ([*held, 7, 8], edit.apply(held)):
                    assert engine.restore(0, state, held)
                    assert engine.pos_min(0) == state.pos_min
                    expected = best_way(
                        held, prompt, pos_min=state.pos_min, checkpoints=list[Checkpoint[State]](), kind=kind
                    )
                    outcome = run_one(engine, prompt)
                    assert outcome.reused == expected.tokens
                    forget(cold)
                    assert distance(outcome.logits, run_one(cold, prompt).logits) < tolerance

    law()


def test_a_state_of_another_model_is_refused(open_tiny: OpenTiny) -> None:
    engines = [open_tiny(arch, copy=2, **params(False)) for arch in ("llama", "gemma3", "mamba", "falcon-h1")]
    prompt = random_tokens(1, 50)
    for engine in engines:
        run_one(engine, prompt)
    states = [engine.save(0) for engine in engines]
    for engine in engines:
        for other, state in zip(engines, states, strict=True):
            if other is not engine:
                assert not engine.restore(0, state, prompt)
                assert list(engine.held(0)) == []
        assert run_one(engine, prompt).reused == 0


@pytest.mark.parametrize(
    "change", [{"type_k": "f16"}, {"type_v": "f16"}, {"flash_attn": "on"}, {"n_ctx": 64}]
)
def test_a_state_of_another_layout_is_refused(open_tiny: OpenTiny, change: dict[str, object]) -> None:
    prompt = random_tokens(1, 300)
    engine = open_tiny("llama", copy=2, **params(False))
    run_one(engine, prompt)
    state = engine.save(0)
    assert not open_tiny("llama", **{**params(False), **change}).restore(0, state, prompt)
