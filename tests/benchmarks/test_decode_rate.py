"""Which positions the sides are asked to evaluate, and what is read from their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.decode_rate import Setup, compare, parse_llama_bench


def record(**changed: object) -> dict[str, object]:
    """A `tg` record as llama-bench writes it, with the keys that matter here."""
    return {"n_prompt": 0, "n_gen": 999, "n_depth": 4, "samples_ts": [151.5], "avg_ts": 1.0, **changed}


def test_the_rate_is_read_from_the_samples() -> None:
    assert parse_llama_bench(json.dumps([record()]), 999, 4) == 151.5
    assert parse_llama_bench(json.dumps([record(samples_ts=[1.0, 9.0, 2.0])]), 999, 4) == 2.0


def test_the_record_of_the_right_test_is_taken() -> None:
    others = [record(n_prompt=512, n_gen=0, samples_ts=[400.0]), record(n_depth=0, samples_ts=[170.0])]
    assert parse_llama_bench(json.dumps([*others, record()]), 999, 4) == 151.5


@pytest.mark.parametrize("records", [[], [record(n_gen=128)], [record(), record()]])
def test_another_test_than_the_one_asked_for_is_refused(records: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="llama-bench"):
        parse_llama_bench(json.dumps(records), 999, 4)


@pytest.mark.parametrize(("depth", "n", "n_ctx"), [(4, 1000, 1024), (24, 1000, 1024), (25, 1000, 1280)])
def test_the_context_holds_prompt_and_answer(depth: int, n: int, n_ctx: int) -> None:
    assert Setup(Path("m.gguf"), "", depth, n, 2, "on").n_ctx == n_ctx


def test_llmrun_is_the_numerator() -> None:
    rates = {"llmrun": [1.0, 99.0], "llama-bench": [1.0, 100.0], "Llama class": [1.0, 66.0]}
    found = compare(rates, [1])
    assert found["llama-bench"].of_medians == 0.99
    assert found["Llama class"].of_medians == 1.5
