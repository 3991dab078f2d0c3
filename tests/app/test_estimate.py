"""An estimate as a whole: numbers alone, a model with rates from each source, what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrun.app.bench.bandwidth import ReadBandwidth
from llmrun.app.bench.subject import header_digest
from llmrun.app.estimate import model as estimate_model
from llmrun.app.estimate.model import writing_system
from llmrun.app.estimate.run import EstimateRequest, estimate
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.engine.bindings import Device
from llmrun.engine.scripted import Script, scripted_factory
from llmrun.errors import EngineFailure, UsageError
from llmrun.events import Notice
from llmrun.gguf.reader import read_header
from llmrun.journal.bench import log_bench
from llmrun.journal.lines import append
from llmrun.metrics.clock import process_clock
from llmrun.reports.estimate import EstimateReport, Lever

from tests.support.models import smollm2_path

CPU = Device("CPU", "", "cpu", 1, 1)


@pytest.fixture(autouse=True)
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"LLMRUN_{kind}_DIR", str(tmp_path / kind))
    monkeypatch.setattr(estimate_model, "probe_devices", lambda: (CPU,))
    monkeypatch.setattr(
        estimate_model, "read_bandwidth", lambda threads: ReadBandwidth(50e9, threads, "2030", 0.0)
    )
    return {name: value for name, value in os.environ.items() if name.startswith("LLMRUN_")}


Ask = Callable[..., EstimateReport]


@pytest.fixture
def ask(env: Mapping[str, str]) -> Ask:
    def of(model: str | Path | None = None, **rest: Any) -> EstimateReport:
        request = EstimateRequest(SettingSources(env=env), None if model is None else str(model), **rest)
        factory = scripted_factory(Script([["x"]]))
        going = estimate(request, process_clock(), Stop(), factory)
        seen = []
        while True:
            try:
                seen.append(next(going))
            except StopIteration as end:
                report: EstimateReport = end.value
                told = any(isinstance(event, Notice) for event in seen)
                assert told == (report.decode.source == "measured" or report.prefill.source == "measured")
                return report

    return of


def test_numbers_alone(ask: Ask) -> None:
    report = ask(prompt_tokens=1000, output_tokens=300, prefill_rate=2000.0, decode_rate=40.0)
    assert (report.times.prefill_s, report.times.decode_s) == (0.5, 7.5)
    assert report.model is None
    assert report.ceiling is None
    assert (report.prefill.source, report.decode.source) == ("given", "given")
    assert {lever.kind for lever in report.levers} == {
        "prefix_cache", "half_retrieved", "quantization", "batch",
    }  # fmt: skip


def test_weights_and_bandwidth_bound_decode(ask: Ask) -> None:
    report = ask(weights_bytes=8 * 10**9, bandwidth=400e9)
    assert report.ceiling is not None
    assert report.ceiling.rate == 50
    assert report.decode.source == "bandwidth"
    assert report.decode.rate == pytest.approx(50)
    assert report.prompt_tokens == 0
    given = ask(weights_bytes=8 * 10**9, bandwidth=400e9, decode_rate=20.0)
    assert given.decode.rate == pytest.approx(20)
    quant = next(lever for lever in given.levers if lever.kind == "quantization")
    assert quant.gain == pytest.approx(1 / (1 - 0.4 / 2))  # reading is 40 % of a step


def test_a_phase_of_which_nothing_is_said_is_left_out(ask: Ask) -> None:
    only = ask(prefill_rate=100.0)
    assert (only.prompt_tokens, only.output_tokens, only.decode.rate) == (512, 0, None)
    assert ask(decode_rate=10.0).prompt_tokens == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_tokens": 10, "decode_rate": 40.0},
        {"output_tokens": 10, "prefill_rate": 40.0},
        {"prompt_tokens": 10, "cached_tokens": 11, "prefill_rate": 1.0},
        {"prompt_tokens": 10, "retrieved_tokens": 11, "prefill_rate": 1.0},
        {"decode_rate": 1.0, "quant": "Q4_0"},
    ],
)
def test_what_cannot_be_estimated_is_refused(ask: Ask, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ask(**wrong)


def test_a_model_tells_what_a_step_reads(ask: Ask) -> None:
    report = ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0)
    assert report.model is not None
    assert report.ceiling is not None
    step = report.ceiling.bytes_per_token
    kv = 23_040 * (report.prompt_tokens + report.output_tokens / 2)
    assert 80e6 < step - kv < 98_362_432
    assert report.ceiling.rate == pytest.approx(50e9 / step)
    assert report.ceiling.source == "measured"


def test_a_bandwidth_measured_beside_other_programs_is_marked(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(report: EstimateReport) -> bool:
        assert report.ceiling is not None
        return report.ceiling.busy

    assert not busy(ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0))
    disturbed = ReadBandwidth(50e9, 1, "2030", 1.5)
    monkeypatch.setattr(estimate_model, "read_bandwidth", lambda threads: disturbed)
    assert busy(ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0))


def test_a_gpu_makes_main_memory_no_bound(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_model, "probe_devices", lambda: (CPU, Device("G", "", "gpu", 1, 1)))
    assert ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0).ceiling is None
    given = ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0, bandwidth=900e9)
    assert given.ceiling is not None


def test_an_engine_that_cannot_be_asked_leaves_the_bound_out(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead() -> tuple[Device, ...]:
        raise EngineFailure("dead")

    monkeypatch.setattr(estimate_model, "probe_devices", dead)
    assert ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0).ceiling is None


def test_another_quantization_by_its_bytes(ask: Ask) -> None:
    def gain(quant: str | None) -> float:
        report = ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0, quant=quant, bandwidth=9e9)
        (lever,) = [lever for lever in report.levers if lever.kind == "quantization"]
        assert quant is None or lever.value == quant.upper()
        return lever.gain

    assert gain("f16") < 1 < gain("iq2_xs")
    assert gain(None) > 1
    with pytest.raises(UsageError, match="Q9"):
        ask(smollm2_path(), prefill_rate=400.0, decode_rate=100.0, quant="Q9")


def test_texts_are_counted_by_the_models_tokenizer(ask: Ask) -> None:
    report = ask(texts=[("one", "Hello there, my friend.")], prefill_rate=400.0, decode_rate=10.0)
    (text,) = report.texts
    assert (text.script, text.characters, text.size_bytes) == ("Latin", 23, 23)
    assert 4 <= text.tokens <= 8
    assert report.prompt_tokens == text.tokens
    assert text.characters_per_s == pytest.approx(10 * 23 / text.tokens)


def test_several_texts_are_samples_and_no_prompt(ask: Ask) -> None:
    texts = [("en", "Where is the key?"), ("ja", "鍵はどこにありますか。"), ("empty", "")]
    report = ask(texts=texts, prefill_rate=400.0, decode_rate=10.0)
    english, japanese, empty = report.texts
    assert report.prompt_tokens == 512
    assert english.characters_per_token > japanese.characters_per_token > 0
    assert japanese.size_bytes == 3 * japanese.characters
    assert (empty.tokens, empty.script, empty.characters_per_token) == (0, "", 0)


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("Straße", "Latin"),
        ("привет hi", "Cyrillic"),
        ("今天天气", "Han"),
        ("12 + 3", ""),
        ("한국어", "Hangul"),
    ],
)
def test_writing_systems(text: str, system: str) -> None:
    assert writing_system(text) == system


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
def test_any_text_has_at_most_one_writing_system(text: str) -> None:
    assert bool(writing_system(text)) <= any(letter.isalpha() for letter in text)


def benchmarked(env: Mapping[str, str], kind: str, rate: float, **more: Any) -> None:
    record = {
        "kind": kind,
        "n_prompt": 512 if kind == "pp" else 0,
        "n_gen": 128 if kind == "tg" else 0,
        "n_depth": 0,
        "n_parallel": 1,
        "avg_ts": rate,
        "test_time": "2030-01-01T00:00:00Z",
        "model_digest": header_digest(smollm2_path(), read_header(smollm2_path())),
        "flags": [],
        **more,
    }
    log_bench(Path(env["LLMRUN_DATA_DIR"]), "run", "", {}, record)


def requested(env: Mapping[str, str]) -> None:
    record = {
        "schema": "llmrun.request/1",
        "time": datetime(2030, 1, 1, tzinfo=UTC).isoformat(),
        "model": {
            "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
            "arch": "llama",
            "quant": "Q4_1",
            "size_bytes": smollm2_path().stat().st_size,
        },
        "usage": {"prompt_tokens": 1000},
        "timings": {
            "cache_n": 0,
            "prompt_n": 1000,
            "prompt_ms": 2000,
            "predicted_n": 11,
            "predicted_ms": 1000,
        },
        "settings": {},
    }
    append(Path(env["LLMRUN_DATA_DIR"]) / "requests.jsonl", record)


def test_benchmarks_come_before_the_log(ask: Ask, env: Mapping[str, str]) -> None:
    requested(env)
    logged = ask(smollm2_path())
    assert logged.decode.source == "log"
    assert logged.decode.rate == pytest.approx(10)
    assert logged.prefill.rate == pytest.approx(500)
    benchmarked(env, "tg", 80)  # half of what is needed
    assert ask(smollm2_path()).decode.source == "log"
    benchmarked(env, "pp", 900)
    both = ask(smollm2_path())
    assert both.decode.source == "bench"
    assert both.decode.rate == pytest.approx(80)
    assert ask(smollm2_path(), source="log").decode.rate == pytest.approx(10)
    mixed = ask(smollm2_path(), decode_rate=5.0)
    assert (mixed.prefill.source, mixed.decode.source) == ("bench", "given")


def test_a_measured_batch_is_no_bound(ask: Ask, env: Mapping[str, str]) -> None:
    benchmarked(env, "pp", 900)
    benchmarked(env, "tg", 80)
    benchmarked(env, "tg", 160, n_parallel=4)

    def batch(parallel: int) -> Lever:
        report = ask(smollm2_path(), prompt_tokens=0, parallel=parallel)
        (lever,) = [lever for lever in report.levers if lever.kind == "batch"]
        return lever

    assert batch(4).gain == pytest.approx(2)
    assert not batch(4).bound
    assert batch(2).bound


def test_going_deeper_than_was_measured_is_told(ask: Ask, env: Mapping[str, str]) -> None:
    benchmarked(env, "pp", 900)
    benchmarked(env, "tg", 80)
    assert ask(smollm2_path(), prompt_tokens=20_000).decode.beyond
    assert not ask(smollm2_path(), prompt_tokens=50, output_tokens=20).decode.beyond


@pytest.mark.parametrize("source", ["bench", "log"])
def test_a_source_that_knows_nothing_says_so(ask: Ask, source: str) -> None:
    with pytest.raises(UsageError, match="bench" if source == "bench" else "log"):
        ask(smollm2_path(), source=source)


def test_a_model_nothing_is_known_of_is_measured(ask: Ask) -> None:
    report = ask(smollm2_path(), prompt_tokens=100)
    assert (report.prefill.source, report.decode.source) == ("measured", "measured")
    assert len(report.decode.points) == 2
