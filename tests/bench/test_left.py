"""The time left, from rates seen so far."""

from __future__ import annotations

import pytest

from llmrun.bench.left import TimeLeft
from llmrun.reports.bench import BenchTest

PP, TG = BenchTest("pp", 100, 0), BenchTest("tg", 0, 10)


def test_nothing_is_known_before_both_phases_were_seen() -> None:
    left = TimeLeft(5, warmup=False, delay_s=0)
    assert left.seconds([PP, TG]) is None
    left.learn(PP, 1.0)
    assert left.seconds([PP, TG]) is None
    assert left.seconds([PP]) == pytest.approx(5.0)
    left.learn(TG, 2.0)
    assert left.seconds([PP, TG]) == pytest.approx(15.0)


def test_rounds_warm_up_depth_and_delay() -> None:
    left = TimeLeft(4, warmup=True, delay_s=3.0)
    left.learn(PP, 1.0)
    assert left.seconds([PP]) == pytest.approx(3 + 5)
    assert left.seconds([PP], rounds_done=2) == pytest.approx(3)
    assert left.seconds([BenchTest("pp", 100, 0, n_depth=300)]) == pytest.approx(3 + 3 + 5)


def test_requests_read_what_is_not_cached_and_a_cached_one_fills_the_cache_first() -> None:
    left = TimeLeft(4, warmup=False, delay_s=3.0)
    left.learn(PP, 1.0)
    left.learn(TG, 1.0)
    cold = BenchTest("e2e", 200, 10, cache="cold")
    cached = BenchTest("e2e", 200, 10, cache="cached", n_cached=199)
    assert left.seconds([cold]) == pytest.approx(3 + 4 * (2 + 1))
    assert left.rounds(cached) == 5
    assert left.seconds([cached], rounds_done=1) == pytest.approx(4 * (0.01 + 1))


def test_nothing_left_takes_no_time() -> None:
    assert TimeLeft(5, warmup=True, delay_s=1.0).seconds([]) == 0


def test_several_sequences_by_their_own_rate_where_it_is_known() -> None:
    left, four = TimeLeft(1, warmup=False, delay_s=0), BenchTest("tg", 0, 10, n_parallel=4)
    left.learn(TG, 1.0)
    assert left.seconds([four]) == pytest.approx(4.0)
    left.learn(four, 2.0)
    assert left.seconds([four]) == pytest.approx(2.0)


def test_a_mixed_test_teaches_nothing() -> None:
    left = TimeLeft(1, warmup=False, delay_s=0)
    left.learn(BenchTest("pg", 10, 10), 1.0)
    assert left.seconds([PP]) is None
