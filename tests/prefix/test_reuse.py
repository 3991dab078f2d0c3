"""The reuse rule itself, against a model of which positions a new token looks at."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.prefix.reuse import MemoryKind, common_prefix, saved_pos_min, usable_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=40)
FULL, RECURRENT = MemoryKind(), MemoryKind(recurrent=True)
quick = settings(deadline=None, database=None)


@quick
@given(TOKENS, TOKENS)
def test_the_common_prefix_is_common_and_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == len(a) or n == len(b) or a[n] != b[n]
    assert common_prefix(b, a) == n


@quick
@given(TOKENS, TOKENS, st.sampled_from([FULL, RECURRENT, MemoryKind(n_swa=4), MemoryKind(4, chunked=True)]))
def test_what_is_reused_is_a_common_prefix_and_leaves_a_token(
    held: list[int], prompt: list[int], kind: MemoryKind
) -> None:
    n = usable_prefix(held, prompt, pos_min=0, kind=kind)
    assert 0 <= n <= common_prefix(held, prompt)
    assert n < len(prompt) or not prompt
    if not kind.recurrent and prompt:
        assert n == min(common_prefix(held, prompt), len(prompt) - 1)


@quick
@given(TOKENS, TOKENS)
def test_a_recurrent_state_goes_on_or_starts_anew(held: list[int], prompt: list[int]) -> None:
    goes_on = len(held) < len(prompt) and prompt[: len(held)] == held
    assert usable_prefix(held, prompt, pos_min=0, kind=RECURRENT) == (len(held) if goes_on else 0)


def seen_by(position: int, kind: MemoryKind) -> range:
    """The earlier positions that a window layer attends to at `position`, from the masks themselves."""
    first = next(
        p
        for p in range(position + 1)
        if (p >= position // kind.n_swa * kind.n_swa if kind.chunked else position - p < kind.n_swa)
    )
    return range(first, position)


@quick
@given(
    length=st.integers(1, 60),
    cut=st.integers(1, 60),
    pos_min=st.integers(0, 60),
    n_swa=st.integers(1, 20),
    chunked=st.booleans(),
)
def test_after_a_rewind_the_window_must_be_whole(
    length: int, cut: int, pos_min: int, n_swa: int, chunked: bool
) -> None:
    """A rewound prefix is kept exactly when its first new token sees only positions that are there."""
    kind = MemoryKind(n_swa, chunked)
    held, cut, pos_min = [1] * length, min(cut, length), min(pos_min, length - 1)
    prompt = [*held[:cut], 2]
    complete = all(p >= pos_min for p in seen_by(cut, kind))
    kept = usable_prefix(held, prompt, pos_min=pos_min, kind=kind)
    if cut == length:
        assert kept == cut  # nothing is taken back: the cache pruned itself for this very position
    elif not complete:
        assert kept == 0
    elif pos_min <= cut:
        assert kept == cut


@pytest.mark.parametrize(("pos_min", "kept"), [(0, 100), (69, 100), (70, 0), (99, 0)])
def test_the_boundary_of_a_window_of_32(pos_min: int, kept: int) -> None:
    held = [1] * 200
    assert usable_prefix(held, [*held[:100], 2], pos_min=pos_min, kind=MemoryKind(n_swa=32)) == kept


@pytest.mark.parametrize(("pos_min", "kept"), [(96, 100), (97, 0)])
def test_the_boundary_of_chunks_of_32(pos_min: int, kept: int) -> None:
    held = [1] * 200
    kind = MemoryKind(n_swa=32, chunked=True)
    assert usable_prefix(held, [*held[:100], 2], pos_min=pos_min, kind=kind) == kept


@pytest.mark.parametrize(
    ("held", "prompt"), [([], []), ([], [1]), ([1, 2], []), ([1], [1]), ([1, 2], [2, 1]), ([1, 2], [1])]
)
def test_nothing_to_reuse(held: list[int], prompt: list[int]) -> None:
    for kind in (FULL, RECURRENT, MemoryKind(n_swa=4)):
        assert usable_prefix(held, prompt, pos_min=0, kind=kind) == 0


@quick
@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_a_copy_goes_on_where_it_was_taken(length: int, pos_min: int, n_swa: int, chunked: bool) -> None:
    """What the next token sees is in the copy, but for positions that the sequence itself had lost."""
    kind = MemoryKind(n_swa, chunked)
    saved = saved_pos_min(length, pos_min, kind)
    assert saved >= pos_min
    if chunked and length % n_swa == 0:
        assert not list(seen_by(length, kind))  # a new chunk begins and sees nothing before it
    else:
        assert all(p >= saved for p in seen_by(length, kind) if p >= pos_min)
    assert saved_pos_min(length, pos_min, FULL) == pos_min
