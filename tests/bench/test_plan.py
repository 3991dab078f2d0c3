"""Which tests a run has, and in which order."""

from __future__ import annotations

from llmrun.bench.plan import BenchPlan
from llmrun.reports.bench import BenchTest


def names(plan: BenchPlan) -> list[str]:
    return [test.name for group in plan.groups() for test in group.tests]


def test_the_default_is_that_of_llama_bench() -> None:
    assert names(BenchPlan(("m",))) == ["pp512", "tg128"]


def test_names_of_tests() -> None:
    plan = BenchPlan(("m",), n_prompt=(64,), n_gen=(16,), pairs=((32, 8),), n_depth=(0, 128))
    assert names(plan) == [
        "pp64", "tg16", "pp32+tg8", "pp64 @ d128", "tg16 @ d128", "pp32+tg8 @ d128",
    ]  # fmt: skip
    assert names(BenchPlan(("m",), n_depth=(8,), n_parallel=(1, 4)))[2:] == ["pp512 @ d8 x4", "tg128 @ d8 x4"]


def test_counts_of_zero_are_no_tests() -> None:
    assert names(BenchPlan(("m",), n_prompt=(0,))) == ["tg128"]
    assert names(BenchPlan(("m",), n_prompt=(0,), n_gen=(0,), pairs=((8, 0), (0, 8)))) == ["pp8", "tg8"]
    assert BenchPlan(("m",), n_prompt=(0,), n_gen=(0,)).groups() == ()


def test_each_combination_of_settings_has_a_context_of_its_own() -> None:
    plan = BenchPlan(
        ("a", "b"), n_parallel=(1, 2), varying={"n_threads": ("1", "2"), "type_k": ("f16",), "type_v": ()}
    )
    groups = plan.groups()
    assert [group.model for group in groups] == ["a"] * 4 + ["b"] * 4
    assert [dict(group.settings)["n_threads"] for group in groups[:4]] == ["1", "1", "2", "2"]
    assert [group.n_parallel for group in groups[:4]] == [1, 2, 1, 2]
    assert all(dict(group.settings)["type_k"] == "f16" for group in groups)
    assert (plan.n_subjects, plan.n_tests) == (4, len(names(plan)))


def test_a_context_holds_the_largest_of_its_tests() -> None:
    (group,) = BenchPlan(("m",), pairs=((512, 256),), n_depth=(0, 100)).groups()
    assert group.cells == 868


def test_what_was_cached_is_not_counted() -> None:
    assert BenchTest("e2e", 100, 10, cache="cached", n_cached=99).n_tokens == 11
    assert BenchTest("tg", 0, 10, n_depth=50, n_parallel=4).n_tokens == 40
