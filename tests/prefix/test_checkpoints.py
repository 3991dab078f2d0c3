"""Checkpoints, against a model of what each layer still holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.prefix.checkpoints import (
    MOST_CHECKPOINTS,
    Checkpoint,
    best_way,
    forgets,
    marks,
    still_valid,
    thinned,
)
from llmrun.prefix.reuse import MemoryKind, common_prefix, usable_prefix

TOKENS = st.lists(st.integers(0, 1), max_size=40)
KINDS = st.sampled_from([MemoryKind(), MemoryKind(recurrent=True), MemoryKind(n_swa=6)])
quick = settings(deadline=None, database=None)


def taken_at(positions: list[int], kind: MemoryKind) -> list[Checkpoint[int]]:
    """Window checkpoints keep the window and three more positions: more than the library's copies have."""
    return [
        Checkpoint(p, max(0, p - kind.n_swa - 3) if kind.n_swa else max(0, p - 1), 10, p) for p in positions
    ]


@quick
@given(TOKENS, TOKENS, st.lists(st.integers(1, 40), max_size=6, unique=True), KINDS)
def test_the_way_leads_to_the_longest_prefix_any_state_can_reach(
    held: list[int], prompt: list[int], positions: list[int], kind: MemoryKind
) -> None:
    checkpoints = taken_at(sorted(p for p in positions if p <= len(held)), kind)
    pos_min = max(0, len(held) - kind.n_swa - 3) if kind.n_swa else 0
    way = best_way(held, prompt, pos_min=pos_min, checkpoints=checkpoints, kind=kind)
    reachable = [usable_prefix(held, prompt, pos_min=pos_min, kind=kind)]
    if forgets(kind):
        reachable += [
            usable_prefix(held[: c.position], prompt, pos_min=c.pos_min, kind=kind) for c in checkpoints
        ]
    assert way.tokens == max(reachable) <= common_prefix(held, prompt)
    assert way.tokens < len(prompt) or not prompt
    if way.checkpoint is None:
        assert way.tokens == reachable[0]
    elif kind.recurrent:
        assert way.tokens == way.checkpoint.position  # a state goes on exactly where it was taken
    else:
        assert way.tokens <= way.checkpoint.position


def test_a_recurrent_state_comes_back_before_the_last_message() -> None:
    held = list(range(100))
    prompt = [*range(70), 500, 501]
    checkpoints = taken_at([20, 60, 90], MemoryKind(recurrent=True))
    way = best_way(held, prompt, pos_min=99, checkpoints=checkpoints, kind=MemoryKind(recurrent=True))
    assert (way.tokens, way.checkpoint) == (60, checkpoints[1])


def test_a_window_that_has_passed_comes_back_with_a_checkpoint() -> None:
    kind = MemoryKind(n_swa=32)
    held, prompt = list(range(300)), [*range(100), 7, 7]
    nothing: list[Checkpoint[str]] = []
    none = best_way(held, prompt, pos_min=250, checkpoints=nothing, kind=kind)
    assert none.tokens == 0
    near = Checkpoint(120, 60, 10, "near")  # 100 - 32 + 1 = 69 is the oldest position needed
    late = Checkpoint(120, 70, 10, "late")
    assert best_way(held, prompt, pos_min=250, checkpoints=[near], kind=kind).tokens == 100
    assert best_way(held, prompt, pos_min=250, checkpoints=[late], kind=kind).tokens == 0


@quick
@given(st.integers(1, 3000), st.integers(1, 512), st.lists(st.integers(-5, 3000)), st.integers(0, 3000))
def test_marks_lie_in_what_is_evaluated(n_prompt: int, n_ubatch: int, cuts: list[int], reused: int) -> None:
    found = marks(n_prompt, n_ubatch, cuts, reused=reused)
    assert list(found) == sorted(set(found))
    assert all(reused < mark < n_prompt for mark in found)
    wanted = {*cuts, n_prompt - 4, n_prompt - 4 - n_ubatch}
    assert set(found) == {mark for mark in wanted if reused < mark < n_prompt}


@quick
@given(TOKENS, TOKENS, st.lists(st.integers(1, 40), max_size=6))
def test_a_checkpoint_is_dropped_when_its_tokens_are_gone(
    held: list[int], now: list[int], positions: list[int]
) -> None:
    checkpoints = taken_at([p for p in positions if p <= len(held)], MemoryKind(recurrent=True))
    for checkpoint in checkpoints:
        same = held[: checkpoint.position] == now[: checkpoint.position]
        assert (checkpoint in still_valid(checkpoints, held, now)) == same


@quick
@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 100)), max_size=60, unique_by=lambda c: c[0]),
    st.integers(0, 2000),
)
def test_thinning_keeps_the_bounds_and_the_newest(taken: list[tuple[int, int]], budget: int) -> None:
    checkpoints = [Checkpoint(position, 0, size, position) for position, size in taken]
    kept = thinned(checkpoints, budget)
    assert len(kept) <= MOST_CHECKPOINTS
    assert sum(c.size_bytes for c in kept) <= budget
    assert kept == sorted(kept, key=lambda c: c.position)
    assert set(kept) <= set(checkpoints)
    if checkpoints and (newest := max(checkpoints, key=lambda c: c.position)).size_bytes <= budget:
        assert newest in kept


def test_thinning_takes_the_one_that_is_missed_least() -> None:
    kept = thinned([Checkpoint(p, 0, 10, p) for p in (100, 110, 500, 505)], 30)
    assert [c.position for c in kept] == [100, 500, 505]


@pytest.mark.parametrize(
    ("kind", "forgetting"),
    [(MemoryKind(), False), (MemoryKind(n_swa=4), True), (MemoryKind(recurrent=True), True)],
)
def test_what_forgets(kind: MemoryKind, forgetting: bool) -> None:
    assert forgets(kind) is forgetting
