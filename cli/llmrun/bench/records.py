"""A record as JSON: exactly llama-bench's keys in its order, then ours.

Values that llama-bench can set and this program cannot are what the engine runs with (own thread pool,
polling level 50, no CPU mask).
"""

from __future__ import annotations

import math
from dataclasses import asdict

from llmrun.reports.bench import Record, RequestTimes, Traffic

LLAMA_BENCH_KEYS = (
    "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type",
    "model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll",
    "type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn",
    "devices", "tensor_split", "tensor_buft_overrides", "load_mode", "lazy_mode", "embeddings",
    "no_op_offload", "no_host", "repack", "fit_target", "fit_min_ctx", "n_prompt", "n_gen", "n_depth",
    "test_time", "avg_ns",
    "stddev_ns", "avg_ts", "stddev_ts",
)  # fmt: skip
"""Fields of `test::get_fields` in tools/llama-bench/llama-bench.cpp."""

SAMPLE_KEYS = ("samples_ns", "samples_ts")


def record_document(record: Record) -> dict[str, object]:
    """The record's keys and values, without NaN or infinity."""
    return {**_llama_bench(record), **_samples(record), **own_values(record)}


def _llama_bench(record: Record) -> dict[str, object]:
    subject, test = record.subject, record.test
    values = {
        "build_commit": subject.build,
        "build_number": 0,
        "cpu_info": subject.cpu_info,
        "gpu_info": subject.gpu_info,
        "backends": subject.backends,
        "model_filename": subject.model_filename,
        "model_type": subject.model_type,
        "model_size": subject.model_bytes,
        "model_n_params": subject.n_params,
        "n_batch": subject.n_batch,
        "n_ubatch": subject.n_ubatch,
        "n_threads": subject.n_threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": subject.type_k,
        "type_v": subject.type_v,
        "n_gpu_layers": subject.n_gpu_layers,
        "n_cpu_moe": subject.n_cpu_moe,
        "split_mode": "layer" if subject.main_gpu < 0 else "none",
        "main_gpu": max(0, subject.main_gpu),
        "no_kv_offload": subject.no_kv_offload,
        "flash_attn": subject.flash_attn,
        "devices": "auto",
        "tensor_split": subject.tensor_split,
        "tensor_buft_overrides": subject.overrides,
        "load_mode": subject.load_mode,
        "lazy_mode": "auto",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": subject.repack,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": record.test_time,
        "avg_ns": _mean(record.samples_ns),
        "stddev_ns": _stddev(record.samples_ns),
        "avg_ts": round(record.spread.mean, 6),
        "stddev_ts": round(record.spread.stddev, 6),
    }
    return {key: values[key] for key in LLAMA_BENCH_KEYS}


def _samples(record: Record) -> dict[str, object]:
    return {
        "samples_ns": list(record.samples_ns),
        "samples_ts": [round(rate, 6) for rate in record.samples_ts],
    }


def own_values(record: Record) -> dict[str, object]:
    """What llama-bench has no name for."""
    test, request, traffic, memory = record.test, record.request, record.traffic, record.memory
    return {
        "test": test.name,
        "kind": test.kind,
        "n_parallel": test.n_parallel,
        "per_request_ts": round(record.per_request_rate, 6),
        "median_ts": round(record.spread.median, 6),
        "outliers": list(record.spread.outliers),
        "cache": test.cache,
        "n_evaluated": None if request is None or request.evaluated < 0 else request.evaluated,
        "n_cached": None if request is None else request.cached,
        "load_ms": None if request is None else _ms(request.load_s),
        "ttft_ms": None if request is None else _ttft(request),
        "itl_ms": None if request is None else _itl(request),
        "total_ms": None if request is None else _ms(request.total_s),
        "prompt_per_second": None if request is None else request.prefill_rate,
        "predicted_per_second": None if request is None else request.generation_rate,
        **_bandwidth(traffic),
        "peak_rss_bytes": memory.peak_rss_bytes,
        "peak_device_bytes": memory.peak_device_bytes,
        "device_bytes": dict(memory.device_bytes),
        "flash_attn_used": record.subject.flash_attn_used,
        "n_gpu_layers_offloaded": record.subject.n_gpu_layers_offloaded,
        "model_ref": record.subject.model_ref,
        "model_digest": record.subject.model_digest,
        "quant": record.subject.quant,
        "machine": asdict(record.quiet),
        "flags": list(record.flags),
    }


OWN_KEYS = (
    "test", "kind", "n_parallel", "per_request_ts", "median_ts", "outliers", "cache", "n_evaluated",
    "n_cached", "load_ms", "ttft_ms", "itl_ms", "total_ms", "prompt_per_second", "predicted_per_second",
    "bytes_per_step", "bandwidth_bytes_per_s", "bandwidth_fraction", "machine_bandwidth_bytes_per_s",
    "ceiling_ts", "peak_rss_bytes", "peak_device_bytes", "device_bytes", "flash_attn_used",
    "n_gpu_layers_offloaded", "model_ref", "model_digest", "quant", "machine", "flags",
)  # fmt: skip
"""Keys of `own_values`, in order."""


def _bandwidth(traffic: Traffic | None) -> dict[str, object]:
    return {
        "bytes_per_step": None if traffic is None else round(traffic.bytes_per_step),
        "bandwidth_bytes_per_s": None if traffic is None else round(traffic.bytes_per_s),
        "bandwidth_fraction": None
        if traffic is None or traffic.fraction is None
        else round(traffic.fraction, 4),
        "machine_bandwidth_bytes_per_s": None
        if traffic is None or traffic.machine_bytes_per_s is None
        else round(traffic.machine_bytes_per_s),
        "ceiling_ts": None
        if traffic is None or traffic.ceiling_rate is None
        else round(traffic.ceiling_rate, 3),
    }


def _ttft(request: RequestTimes) -> dict[str, object]:
    return {
        "total": _ms(request.ttft_s),
        "queue": _ms(request.queue_s),
        "tokenize": _ms(request.tokenize_s),
        "prefill": _ms(request.prefill_s),
        "first_sample": _ms(request.first_sample_s),
    }


def _itl(request: RequestTimes) -> dict[str, object] | None:
    if request.itl is None:
        return None
    return {name.removesuffix("_s"): _ms(value) for name, value in asdict(request.itl).items()}


def _ms(time_s: float) -> float:
    return round(time_s * 1000, 3)


def _mean(samples: tuple[int, ...]) -> int:
    return sum(samples) // len(samples)


def _stddev(samples: tuple[int, ...]) -> int:
    mean = sum(samples) / len(samples)
    squares = sum((sample - mean) ** 2 for sample in samples)
    return int(math.sqrt(squares / (len(samples) - 1))) if len(samples) > 1 else 0
