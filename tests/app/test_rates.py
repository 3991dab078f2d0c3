"""Where rates come from: the request log, benchmarks, or a measurement on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmrun.app.estimate.rates import from_bench, from_log, measure
from llmrun.bench.estimate import RateCurve
from llmrun.engine.api import ContextParams, DecodeResult
from llmrun.engine.scripted import Script, ScriptedEngine
from llmrun.errors import DoesNotFit, Interrupted
from llmrun.events import ModelInfo

from tests.support.requests import SetClock

MODEL = ModelInfo("small", "/models/small.gguf", "Small", "llama", "Q8_0", 1000)
THREADS = {
    "n_threads": 4,
    "n_gpu_layers_offloaded": 0,
    "type_k": "f16",
    "type_v": "f16",
    "flash_attn": "auto",
}


def logged(
    *,
    prompt: int = 1000,
    cached: int = 0,
    prompt_ms: float = 1000,
    n: int = 101,
    ms: float = 2000,
    **settings: int,
) -> dict[str, Any]:
    return {
        "schema": "llmrun.request/1",
        "time": "2030-05-06T07:08:09.000Z",
        "model": {
            "name": MODEL.name,
            "arch": MODEL.arch,
            "quant": MODEL.quant,
            "size_bytes": MODEL.size_bytes,
        },
        "usage": {"prompt_tokens": prompt},
        "timings": {
            "cache_n": cached,
            "prompt_n": prompt - cached,
            "prompt_ms": prompt_ms,
            "predicted_n": n,
            "predicted_ms": ms,
        },
        "settings": {**THREADS, **settings},
    }


def points(curve: RateCurve | None) -> list[tuple[float, Any]]:
    assert curve is not None
    return [(point.depth, pytest.approx(point.rate)) for point in curve.points]


def test_a_request_tells_both_rates_at_its_depths() -> None:
    rates = from_log([logged()], MODEL)
    assert rates is not None
    assert points(rates.prefill) == [(500, 1000)]
    assert points(rates.decode) == [(1050, 50)]  # 100 gaps in 2 s, after 1,000 tokens
    assert "2030-05-06" in rates.note


def test_cached_tokens_are_depth_and_no_work() -> None:
    rates = from_log([logged(cached=800, prompt_ms=400)], MODEL)
    assert rates is not None
    assert points(rates.prefill) == [(900, 500)]


def test_requests_of_like_depth_count_by_their_tokens() -> None:
    rates = from_log([logged(ms=1000), logged(ms=3000)], MODEL)
    assert rates is not None
    assert points(rates.decode) == [(1050, 50)]


def test_deep_and_shallow_requests_stay_apart() -> None:
    rates = from_log([logged(prompt=100, prompt_ms=50), logged(prompt=8000, prompt_ms=16_000)], MODEL)
    assert rates is not None
    assert points(rates.prefill) == [(50, 2000), (4000, 500)]


def test_what_says_little_is_left_out() -> None:
    assert from_log([], MODEL) is None
    assert from_log([logged(prompt=20, n=2)], MODEL) is None
    other = logged()
    other["model"]["quant"] = "Q4_0"
    assert from_log([other], MODEL) is None
    only_decode = from_log([logged(prompt=20)], MODEL)
    assert only_decode is not None
    assert only_decode.prefill is None


def test_only_requests_with_the_settings_of_the_newest_count() -> None:
    rates = from_log([logged(ms=1, n_threads=1), logged(), logged(ms=1, n_threads=1), logged()], MODEL)
    assert rates is not None
    assert points(rates.decode) == [(1050, 50)]


@pytest.mark.parametrize("damage", [{"timings": None}, {"usage": 3}, {"settings": []}, {"model": "x"}])
def test_damaged_records_are_harmless(damage: dict[str, Any]) -> None:
    from_log([{**logged(), **damage}], MODEL)
    rates = from_log([{**logged(), "timings": None}, logged()], MODEL)
    assert rates is not None


def bench(kind: str, count: int, rate: float, **more: Any) -> dict[str, Any]:
    counts = {"n_prompt": count if kind == "pp" else 0, "n_gen": count if kind == "tg" else 0}
    record = {
        "kind": kind,
        "n_depth": 0,
        "n_parallel": 1,
        "avg_ts": rate,
        "test_time": "2030-01-01T00:00:00Z",
    }
    return {**record, **counts, "flags": [], **more}


def test_benchmarks_tell_rates_over_depth_and_of_batches() -> None:
    records = [
        bench("pp", 512, 900),
        bench("tg", 128, 50),
        bench("tg", 128, 40, n_depth=1024),
        bench("tg", 128, 150, n_parallel=4),
    ]
    rates = from_bench(records, lambda _: True)
    assert rates is not None
    assert points(rates.prefill) == [(256, 900)]
    assert points(rates.decode) == [(64, 50), (1088, 40)]
    assert rates.together == {4: 150}


def test_a_test_counts_as_it_ran_last_and_disturbed_ones_are_marked() -> None:
    records = [bench("tg", 128, 10), bench("tg", 128, 50, flags=["busy"])]
    rates = from_bench(records, lambda _: True)
    assert rates is not None
    assert points(rates.decode) == [(64, 50)]
    assert "disturbed" in rates.note
    assert from_bench(records, lambda _: False) is None


def test_benchmarks_of_other_settings_say_nothing() -> None:
    records = [bench("pp", 512, 900, n_threads=1), bench("tg", 128, 50, n_threads=4)]
    rates = from_bench(records, lambda _: True)
    assert rates is not None
    assert rates.prefill is None


class TimedEngine(ScriptedEngine):
    """A token costs 1 ms and another for each 1,000 before it; a prompt's a tenth of that."""

    def __init__(self, clock: SetClock, answer: DecodeResult = "ok", n_ctx: int = 8192) -> None:
        super().__init__(Script([["x"]]), ContextParams(n_ctx=n_ctx, n_ubatch=100))
        self._clock, self._answer = clock, answer

    def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        token_s = 0.001 * (1 + len(self.held(0)) / 1000)
        self._clock.now_s += token_s * len(pairs) * (0.1 if len(pairs) > 1 else 1)
        super().feed(pairs)
        return self._answer


def test_a_measurement_follows_both_phases_over_depth() -> None:
    clock = SetClock()
    rates = measure(TimedEngine(clock), clock, deepest=1000)
    assert rates.prefill is not None
    assert rates.decode is not None
    assert rates.prefill.deepest > 800
    assert 1 / rates.prefill.seconds_at(500) == pytest.approx(10_000 / 1.5, rel=0.05)
    assert 1 / rates.decode.seconds_at(1000) == pytest.approx(1000 / 2, rel=0.05)


def test_a_measurement_stays_inside_the_context() -> None:
    clock = SetClock()
    engine = TimedEngine(clock, n_ctx=256)
    measure(engine, clock, deepest=100_000)
    assert len(engine.held(0)) <= 256


def test_a_slow_machine_is_not_measured_for_long() -> None:
    clock = SetClock()

    class Slow(TimedEngine):
        def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
            clock.now_s += len(pairs)
            return super().feed(pairs)

    engine = Slow(clock)
    measure(engine, clock, deepest=8000)
    assert clock.now_s < 300


@pytest.mark.parametrize(("answer", "error"), [("aborted", Interrupted), ("full", DoesNotFit)])
def test_a_measurement_that_cannot_go_on(answer: DecodeResult, error: type[Exception]) -> None:
    clock = SetClock()
    with pytest.raises(error):
        measure(TimedEngine(clock, answer), clock, 100)
