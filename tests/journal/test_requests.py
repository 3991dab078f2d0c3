from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmrun.config.layers import resolve
from llmrun.errors import WriteFailure
from llmrun.events import (
    Completion,
    DeviceKv,
    Difference,
    GenerationStats,
    ItlStats,
    KvUse,
    ModelInfo,
    PrefixReport,
)
from llmrun.journal.lines import read
from llmrun.journal.requests import log_request, request_log, request_record

NOON = datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
SECRET = "tell nobody"


def completion() -> Completion:
    settings = resolve(flags={"system": SECRET, "stop": [SECRET], "model": SECRET, "n_ctx": 4096, "seed": 7})
    return Completion(
        model=ModelInfo(SECRET, SECRET, "Small 1B", "llama", "Q4_K_M", 700_000_000),
        text=SECRET,
        reasoning=SECRET,
        finish_reason="stop",
        stats=GenerationStats(
            load_s=1.25,
            queue_s=0.0,
            tokenize_s=0.01,
            prefill_s=0.3,
            ttft_s=0.5,
            ttft_answer_s=0.7,
            generation_s=0.31,
            total_s=0.81,
            prompt_tokens=1000,
            cached_tokens=940,
            generated_tokens=4,
            reasoning_tokens=2,
            itl=ItlStats(0.31 / 3, 0.1, 0.11, 0.11, 0.11),
        ),
        prefix=PrefixReport(memory_tokens=940),
        kv=KvUse(1003, 4096, "f16", "q8_0", (DeviceKv("CPU", 4000, 900), DeviceKv("CUDA0", 400, 90))),
        dropped_messages=1,
        settings={**settings.as_json(), "note": SECRET, "history": [SECRET], "n_threads_used": 3},
    )


def test_counts_times_and_settings_are_kept() -> None:
    record = request_record(completion(), NOON)
    document = json.loads(json.dumps(record, allow_nan=False))
    assert document["schema"] == "llmrun.request/1"
    assert document["time"] == "2025-03-01T12:00:00.250Z"
    model = {"name": "Small 1B", "arch": "llama", "quant": "Q4_K_M", "size_bytes": 700_000_000}
    assert document["model"] == model
    assert document["usage"] == {
        "prompt_tokens": 1000,
        "completion_tokens": 4,
        "total_tokens": 1004,
        "prompt_tokens_details": {"cached_tokens": 940},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    timings = document["timings"]
    assert (timings["load_ms"], timings["ttft_ms"], timings["total_ms"]) == (1250.0, 500.0, 810.0)
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (940, 60, 4)
    assert timings["prompt_per_second"] == pytest.approx(200.0)
    assert timings["predicted_per_second"] == pytest.approx(3 / 0.31)
    assert timings["itl_ms"]["mean"] == 103.333
    assert document["kv"]["used_bytes"] == 990
    assert document["kv"]["allocated_bytes"] == 4400
    assert document["prefix_cache"]["memory_tokens"] == 940
    assert document["dropped_messages"] == 1
    settings = document["settings"]
    assert (settings["n_ctx"], settings["seed"], settings["flash_attn"]) == (4096, 7, "auto")
    assert settings["n_threads_used"] == 3


def test_no_word_of_the_user_gets_in() -> None:
    assert SECRET not in json.dumps(request_record(completion(), NOON))
    reason = f'differs from token 5 ("{SECRET}" against "{SECRET}")'
    missed = PrefixReport(miss_reason=reason, difference=Difference(4, SECRET, SECRET, SECRET))
    record = request_record(replace(completion(), prefix=missed), NOON)
    assert SECRET not in json.dumps(record)
    assert "differs from token 5" in json.dumps(record)


def test_times_of_other_zones_are_written_in_utc() -> None:
    east = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert request_record(completion(), east)["time"] == "2025-03-01T12:00:00.250Z"


def test_a_request_without_tokens_has_empty_figures_not_wrong_ones() -> None:
    whole = completion()
    stats = replace(
        whole.stats, ttft_s=None, ttft_answer_s=None, generated_tokens=0, generation_s=0.0, itl=None
    )
    record = request_record(replace(whole, finish_reason="interrupted", stats=stats), NOON)
    timings = record["timings"]
    assert isinstance(timings, dict)
    assert timings["ttft_ms"] is None
    assert timings["itl_ms"] is None
    assert timings["predicted_per_second"] is None


def test_each_request_adds_one_line(tmp_path: Path) -> None:
    for _ in range(2):
        log_request(tmp_path / "data", completion(), NOON)
    journal = read(request_log(tmp_path / "data"))
    assert len(journal.records) == 2
    assert journal.damaged == 0


def test_a_log_that_cannot_be_written_is_the_caller_s_to_judge(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(WriteFailure):
        log_request(tmp_path / "data", completion(), NOON)
