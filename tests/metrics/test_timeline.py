from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.events import GenerationStats
from llmrun.metrics.clock import process_clock
from llmrun.metrics.timeline import Timeline, itl_stats, nearest_rank, token_gaps


class HandClock:
    """A clock that shows what the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def begin(clock: HandClock, prompt: int = 10, cached: int = 0) -> Timeline:
    """A request accepted at 0, prefilled from 0.1 to 0.4 s."""
    line = Timeline(clock, load_s=1.5)
    line.accepted()
    clock.now_s = 0.02
    line.started()
    clock.now_s = 0.1
    line.tokenized(prompt)
    line.prefill_started()
    line.reused(cached)
    clock.now_s = 0.4
    line.prefilled()
    return line


def arrivals(times_s: list[float], kinds: str = "") -> GenerationStats:
    clock = HandClock()
    line = begin(clock)
    for at, time_s in enumerate(times_s):
        clock.now_s = time_s
        line.token(1, "reasoning" if kinds[at : at + 1] == "r" else "answer")
    clock.now_s += 5.0
    return line.finished()


def test_arrivals_of_the_worked_example() -> None:
    stats = arrivals([0.50, 0.60, 0.70, 0.81])
    assert stats.ttft_s == 0.50
    assert stats.total_s == 0.81
    assert stats.itl is not None
    assert math.isclose(stats.itl.mean_s, 0.31 / 3)
    assert stats.generated_tokens == 4
    assert stats.generation_rate is not None
    assert math.isclose(stats.generation_rate, 3 / 0.31)
    assert stats.itl.p50_s == pytest.approx(0.10)
    assert stats.itl.p99_s == stats.itl.max_s == pytest.approx(0.11)


def test_times_are_counted_from_acceptance_not_from_the_clock_s_zero() -> None:
    clock = HandClock()
    clock.now_s = 100.0
    line = Timeline(clock)
    assert line.accepted() == 100.0
    line.tokenized(3)
    line.prefill_started()
    line.prefilled()
    clock.now_s = 100.5
    assert line.token() == 100.5
    stats = line.finished()
    assert (stats.ttft_s, stats.total_s) == (0.5, 0.5)


def test_ttft_is_the_sum_of_its_four_parts_and_load_is_not_among_them() -> None:
    stats = arrivals([0.5])
    assert stats.load_s == 1.5
    assert stats.first_sample_s == pytest.approx(0.1)
    parts = (stats.queue_s, stats.tokenize_s, stats.prefill_s, stats.first_sample_s)
    assert parts == pytest.approx((0.02, 0.08, 0.3, 0.1))


def test_waiting_between_tokenising_and_prefill_is_queue_time() -> None:
    clock = HandClock()
    line = Timeline(clock)
    line.accepted()
    line.tokenized(3)
    clock.now_s = 2.0
    line.prefill_started()
    clock.now_s = 3.0
    line.prefilled()
    line.token()
    stats = line.finished()
    assert (stats.queue_s, stats.tokenize_s, stats.prefill_s, stats.first_sample_s) == (2.0, 0.0, 1.0, 0.0)


def test_a_single_token_has_no_rate_and_no_itl() -> None:
    stats = arrivals([0.5])
    assert stats.generated_tokens == 1
    assert stats.generation_rate is None
    assert stats.itl is None
    assert stats.generation_s == 0.0
    assert stats.total_s == 0.5


def test_interrupted_before_the_first_token() -> None:
    clock = HandClock()
    line = begin(clock)
    clock.now_s = 0.45
    stats = line.finished()
    assert stats.generated_tokens == 0
    assert stats.ttft_s is None
    assert stats.ttft_answer_s is None
    assert stats.first_sample_s is None
    assert stats.generation_rate is None
    assert stats.itl is None
    assert stats.total_s == 0.45
    assert stats.prefill_rate == pytest.approx(10 / 0.3)


def test_a_prefill_that_was_cut_short_has_a_time_but_no_rate() -> None:
    clock = HandClock()
    line = Timeline(clock)
    line.accepted()
    line.tokenized(1000)
    line.prefill_started()
    clock.now_s = 0.25
    stats = line.finished()
    assert stats.prefill_s == 0.25
    assert stats.prefill_rate is None


def test_a_request_that_ended_before_prefill_took_no_prefill_time() -> None:
    clock = HandClock()
    line = Timeline(clock)
    line.accepted()
    line.started()
    clock.now_s = 0.25
    stats = line.finished()
    assert (stats.tokenize_s, stats.prefill_s, stats.prompt_tokens) == (0.25, 0.0, 0)


def test_cached_tokens_do_not_count_as_prefill() -> None:
    clock = HandClock()
    stats = begin(clock, prompt=1000, cached=940).finished()
    assert stats.prefill_tokens == 60
    assert stats.prefill_rate == pytest.approx(60 / 0.3)


def test_reasoning_counts_for_ttft_and_the_answer_has_its_own() -> None:
    stats = arrivals([0.5, 0.6, 0.7, 0.8], "rraa")
    assert stats.ttft_s == 0.5
    assert stats.ttft_answer_s == 0.7
    assert stats.reasoning_tokens == 2
    assert stats.generated_tokens == 4


def test_only_reasoning_leaves_the_answer_s_time_open() -> None:
    stats = arrivals([0.5, 0.6], "rr")
    assert stats.ttft_s == 0.5
    assert stats.ttft_answer_s is None


def test_tokens_of_one_step_share_its_time() -> None:
    assert token_gaps([(1.0, 1), (1.3, 3), (1.4, 1)]) == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert token_gaps([(1.0, 2), (1.3, 1)]) == pytest.approx([0.0, 0.3])


STEPS = st.lists(
    st.tuples(st.floats(min_value=1e-4, max_value=10.0), st.integers(min_value=1, max_value=5)),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_gaps_rate_and_mean_agree(steps: list[tuple[float, int]]) -> None:
    clock = HandClock()
    line = begin(clock)
    times: list[tuple[float, int]] = []
    for gap_s, n in steps:
        clock.now_s += gap_s
        times.append((line.token(n), n))
    stats = line.finished()
    n_all = sum(n for _, n in steps)
    assert stats.generated_tokens == n_all
    assert len(token_gaps(times)) == n_all - 1
    assert sum(token_gaps(times)) == pytest.approx(stats.generation_s)
    assert stats.ttft_s is not None
    assert stats.ttft_s + stats.generation_s == pytest.approx(stats.total_s)
    if stats.generation_rate is not None:
        assert stats.generation_rate * stats.generation_s == pytest.approx(n_all - 1)
        assert stats.itl is not None
        assert stats.itl.mean_s * stats.generation_rate == pytest.approx(1.0)
        assert stats.itl.p50_s <= stats.itl.p90_s <= stats.itl.p99_s <= stats.itl.max_s


@given(st.lists(st.floats(min_value=0, max_value=9), min_size=1), st.integers(min_value=1, max_value=100))
def test_nearest_rank_is_the_smallest_value_that_covers_its_share(values: list[float], percent: int) -> None:
    values.sort()
    chosen = nearest_rank(values, percent)
    assert chosen in values
    assert sum(v <= chosen for v in values) * 100 >= percent * len(values)
    assert sum(v < chosen for v in values) * 100 < percent * len(values)


def test_no_arrivals_no_latency() -> None:
    assert itl_stats([]) is None


def test_the_process_clock_starts_at_zero() -> None:
    readings = iter([7.0, 7.0, 9.5])
    clock = process_clock(lambda: next(readings))
    assert (clock(), clock()) == (0.0, 2.5)
