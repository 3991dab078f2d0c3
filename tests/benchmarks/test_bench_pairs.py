"""Which tests of two programs are compared, and what is read from their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_vs_llama_bench as alone
from benchmarks import parallel_vs_batched_bench as several
from benchmarks.machine import CannotRun


def record(
    n_prompt: int, n_gen: int, n_depth: int = 0, *rates: float, n_parallel: int = 1
) -> dict[str, object]:
    return {
        "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": n_depth, "n_parallel": n_parallel,
        "samples_ts": list(rates or (1.0,)), "median_ts": (rates or (1.0,))[0],
    }  # fmt: skip


def test_rates_by_the_name_of_the_test() -> None:
    found = alone.rates_of([record(512, 0, 0, 3.0, 1.0, 2.0), record(0, 128, 1024, 5.0), record(8, 4)])
    assert found == {"pp512": 2.0, "tg128 @ d1024": 5.0, "pp8+tg4": 1.0}


def test_a_test_that_was_run_twice_is_refused() -> None:
    with pytest.raises(CannotRun):
        alone.rates_of([record(8, 0), record(8, 0)])


def test_sides_that_ran_different_tests_are_not_compared() -> None:
    with pytest.raises(CannotRun):
        alone.take_turns([(lambda: {"pp8": 1.0}, lambda: {"pp9": 1.0})], 1, "other")


def test_a_ratio_of_each_test() -> None:
    pairs = [(lambda: {"pp8": 99.0}, lambda: {"pp8": 100.0}), (lambda: {"tg4": 9.0}, lambda: {"tg4": 10.0})]
    rounds = alone.take_turns(pairs, 3, "other")
    found = rounds.compare()
    assert (found["pp8"].of_medians, found["tg4"].of_medians) == (0.99, 0.9)
    assert alone.within_tolerance(found["pp8"])
    assert not alone.within_tolerance(found["tg4"])
    assert not several.fast_enough(found["tg4"])


def test_the_sides_change_who_goes_first() -> None:
    order: list[str] = []

    def side(name: str) -> alone.Side:
        def run() -> alone.Rates:
            order.append(name)
            return {"pp8": 1.0}

        return run

    alone.take_turns([(side("ours"), side("theirs"))], 2, "other")
    assert order == ["ours", "theirs", "theirs", "ours"]


def test_each_test_is_asked_for_alone() -> None:
    tests = alone.tests_of(512, 128, 1024)
    assert [(t.n_prompt, t.n_gen, t.depth) for t in tests] == [
        (512, 0, 0), (0, 128, 0), (512, 0, 1024), (0, 128, 1024),
    ]  # fmt: skip
    assert alone.tests_of(512, 0, 0) == [alone.Test(512, 0, 0)]
    flags = alone.shared_flags(alone.Setup(Path("m"), 2, "off"), tests[2])
    assert flags == ["-p", "512", "-n", "0", "-d", "1024", "-r", "1", "-t", "2", "-fa", "0"]


def test_of_several_sequences_prompts_and_the_outputs_behind_them() -> None:
    records = [record(128, 0, n_parallel=4), record(0, 64, 128, 7.0)]
    assert several.rates_of(records) == {"prompt x4": 1.0, "output x1": 7.0}


def test_lines_of_batched_bench_between_its_log() -> None:
    text = (
        'main: something\n{"n_kv_max": 1, "pp": 8, "tg": 4, "pl": 2, "speed_pp": 10.5, "speed_tg": 3.5}\n\n'
    )
    assert several.parse_batched_bench(text) == {"prompt x2": 10.5, "output x2": 3.5}


def test_cells_of_several_sequences() -> None:
    assert several.Setup(Path("m"), 200, 57, 2, True).n_ctx(8) == 8 * 512
