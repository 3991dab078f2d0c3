"""Records of benchmarks made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmrun.bench.stats import spread_of
from llmrun.events import ItlStats
from llmrun.reports.bench import BenchTest, Memory, Quiet, Record, RequestTimes, Subject, Traffic

SUBJECT = Subject(
    build="1.2 (abc)",
    backends="CPU",
    cpu_info="a CPU",
    gpu_info="",
    model_filename="/models/a.gguf",
    model_ref="a",
    model_type="llama 8B Q4_K",
    model_bytes=4_000_000_000,
    n_params=8_000_000_000,
    model_digest="0" * 64,
    quant="Q4_K_M",
    n_batch=2048,
    n_ubatch=512,
    n_threads=4,
    type_k="f16",
    type_v="f16",
    n_gpu_layers=-1,
    n_gpu_layers_offloaded=0,
    n_cpu_moe=0,
    main_gpu=-1,
    no_kv_offload=False,
    flash_attn=-1,
    flash_attn_used="on",
    tensor_split="0.00",
    overrides="none",
    load_mode="mmap",
    repack=True,
)
ITL = ItlStats(0.025, 0.024, 0.03, 0.04, 0.05)
TIMES = RequestTimes(
    ttft_s=0.5,
    queue_s=0.0,
    tokenize_s=0.01,
    prefill_s=0.48,
    first_sample_s=0.01,
    total_s=3.0,
    itl=ITL,
    load_s=1.5,
    evaluated=100,
    cached=0,
    prefill_rate=208.0,
    generation_rate=40.0,
)


def record(
    test: BenchTest,
    rates: Sequence[float] = (10.0, 10.0, 10.0),
    *,
    flags: tuple[str, ...] = (),
    traffic: Traffic | None = None,
    request: RequestTimes | None = None,
    **subject: Any,
) -> Record:
    """A record of repetitions at these rates; `subject` are values of `Subject` that differ."""
    samples = tuple(round(1e9 * test.n_tokens / rate) for rate in rates)  # rates that divide give back theirs
    return Record(
        replace(SUBJECT, **subject),
        test,
        "2030-01-02T03:04:05Z",
        samples,
        spread_of([1e9 * test.n_tokens / taken for taken in samples]),
        Memory(1_000_000, {"CPU": 5_000_000}, None),
        Quiet(0.0, 0.0, 0.0, False),
        flags,
        traffic,
        request,
    )


def pp(n: int, *rates: float, depth: int = 0, n_parallel: int = 1, **rest: Any) -> Record:
    """A prompt test."""
    return record(BenchTest("pp", n, 0, depth, n_parallel), rates or (100.0,) * 3, **rest)


def tg(n: int, *rates: float, depth: int = 0, n_parallel: int = 1, **rest: Any) -> Record:
    """An output test."""
    return record(BenchTest("tg", 0, n, depth, n_parallel), rates or (10.0,) * 3, **rest)
