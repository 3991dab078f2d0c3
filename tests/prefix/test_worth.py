"""The rule that decides what is written to disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.prefix.worth import LEAST_SAVED_S, MOST_OVERHEAD, Cost, pays

MIB = 1 << 20
DOCUMENT = Cost(88 * MIB, write_speed=1e9, read_speed=3e9)


@pytest.mark.parametrize(
    ("saved_s", "cost", "spent_s", "kept"),
    [
        (18.0, DOCUMENT, 20.0, True),  # a document of 4,000 tokens
        (0.14, DOCUMENT, 20.0, False),  # one more question on it
        (18.0, DOCUMENT, 1.0, False),  # 92 ms would be 9 % of so short a request
        (18.0, Cost(88 * MIB, write_speed=1e7), 20.0, False),  # a disk of 10 MB/s
        (2.0, Cost(512 * MIB, write_speed=2e8, read_speed=2e8), 1e9, False),  # slower to read than to compute
        (18.0, Cost(88 * MIB, 20_000 * MIB), 20.0, False),  # 20 GB to hash first
        (900.0, Cost(2000 * MIB, 20_000 * MIB, 1e9, 1e9), 1000.0, True),
    ],
)
def test_what_pays(saved_s: float, cost: Cost, spent_s: float, kept: bool) -> None:
    assert pays(saved_s, cost, spent_s=spent_s) is kept


SECONDS = st.floats(0, 1e4)
COSTS = st.builds(
    Cost, st.integers(0, 1 << 36), st.integers(0, 1 << 36), st.floats(0, 1e10), st.floats(0, 1e10)
)


@given(SECONDS, COSTS, SECONDS)
def test_a_prefix_that_is_never_asked_for_costs_three_percent_at_most(
    saved_s: float, cost: Cost, spent_s: float
) -> None:
    if pays(saved_s, cost, spent_s=spent_s):
        assert cost.keep_s <= MOST_OVERHEAD * spent_s
        assert saved_s >= LEAST_SAVED_S
        assert saved_s >= cost.keep_s + cost.read_s
        assert pays(saved_s, cost, spent_s=spent_s, leaving=True)


def test_the_end_of_a_chat_is_held_up_for_a_moment_only() -> None:
    assert not pays(3.0, DOCUMENT, spent_s=1.0)
    assert pays(3.0, DOCUMENT, spent_s=1.0, leaving=True)
    assert not pays(60.0, Cost(4000 * MIB, write_speed=1e9), spent_s=1.0, leaving=True)
