"""Which phase a use waits for, and what would move it, worked out by hand."""

from __future__ import annotations

import pytest

from llmrun.bench.verdict import verdicts
from llmrun.reports.bench import BenchTest, LeverGain, Record, Traffic, Verdict

from tests.support.bench import TIMES, pp, record, tg


def one(*records: Record) -> Verdict:
    (verdict,) = verdicts(records)
    return verdict


def gains(*records: Record) -> dict[str, LeverGain]:
    return {lever.kind: lever for lever in one(*records).levers}


def test_decode_bound() -> None:
    """1,000 prompt tokens at 2,000 tok/s and 300 at 40: 0.5 + 7.5 = 8.0 s, 94 % decode."""
    verdict = one(pp(1000, 2000.0), tg(300, 40.0))
    assert (verdict.prefill_s, verdict.decode_s, verdict.phase) == (0.5, 7.5, "decode")
    assert verdict.share == pytest.approx(0.9375)


def test_prefill_bound() -> None:
    assert one(pp(1000, 100.0), tg(10, 100.0)).phase == "prefill"


def test_a_smaller_quantization_moves_what_memory_explains() -> None:
    levers = gains(pp(1000, 1000.0), tg(90, 10.0, traffic=Traffic(4e9, 4e9, 40e9, 50e9, 12.5)))
    assert levers["quantization"].gain == pytest.approx(10 / (1 + 9 * (1 - 0.8 / 2)))
    deep = gains(pp(1000, 1000.0), tg(90, 10.0, traffic=Traffic(4e9, 3e9, 40e9, 50e9, 12.5)))
    assert deep["quantization"].gain == pytest.approx(10 / (1 + 9 * (1 - 0.8 * 0.75 / 2)))  # K/V stay
    assert "quantization" not in gains(pp(1000, 1000.0), tg(90, 10.0))


def test_prompt_levers() -> None:
    levers = gains(pp(1000, 1000.0), tg(10, 10.0))
    assert levers["shorter_prompt"].gain == pytest.approx(2 / 1.5)
    assert levers["prefix_cache"].gain == pytest.approx(2 / 1.001)
    assert levers["prefix_cache"].value == "999"


def test_batching_by_what_was_measured_with_several() -> None:
    levers = gains(pp(100, 1000.0), tg(90, 10.0), tg(90, 30.0, n_parallel=4), tg(90, 20.0, n_parallel=2))
    assert levers["batching"].value == "4"
    assert not levers["batching"].bound
    assert levers["batching"].gain == pytest.approx(9.1 / (0.1 + 3.0))


def test_bounds_where_nothing_was_measured() -> None:
    levers = gains(pp(100, 1000.0), tg(90, 10.0))
    assert levers["batching"].bound
    assert levers["batching"].gain == pytest.approx(4 * 9.1 / (4 * 0.1 + 9))
    assert levers["speculation"].bound
    assert levers["speculation"].gain == pytest.approx(9.1 / (0.1 + 9 / 5))


def test_speculation_does_not_outrun_prefill() -> None:
    levers = gains(pp(100, 20.0), tg(90, 10.0))
    assert levers["speculation"].gain == pytest.approx(14 / (5 + 90 / 5 * 0.25))


def test_levers_come_best_first_and_only_where_they_help() -> None:
    levers = one(pp(1000, 1000.0), tg(90, 10.0)).levers
    assert [lever.gain for lever in levers] == sorted((lever.gain for lever in levers), reverse=True)
    assert all(lever.gain > 1 for lever in levers)


def test_a_whole_request_decides_where_there_is_one() -> None:
    request = record(BenchTest("e2e", 100, 101, cache="cold"), (67.0,), request=TIMES)
    verdict = one(pp(512, 100.0), tg(128, 10.0), request)
    assert (verdict.prompt_tokens, verdict.output_tokens) == (100, 101)
    assert verdict.prefill_s == pytest.approx(100 / 208)
    assert verdict.decode_s == pytest.approx(101 / 40)


def test_one_phase_alone_gives_no_verdict() -> None:
    assert verdicts([pp(512)]) == ()
    assert verdicts([tg(128)]) == ()
    assert verdicts([]) == ()


def test_each_model_has_its_own() -> None:
    records = [pp(8), tg(4), pp(8, model_ref="b"), tg(4, model_ref="b")]
    assert [verdict.model for verdict in verdicts(records)] == ["a", "b"]
