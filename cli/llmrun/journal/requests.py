"""The request log: what each request cost, never what was said.

One record a request with the counts and times of `llmrun.completion/1` under the same names. Text stays
out: prompt, answer, reasoning, system message and stop texts, and the model's path, which may name people.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from llmrun.config.schema import BY_NAME
from llmrun.events import Completion, GenerationStats
from llmrun.journal.lines import append

SCHEMA = "llmrun.request/1"


def request_log(data_dir: Path) -> Path:
    """The log's file in the data folder."""
    return data_dir / "requests.jsonl"


def log_request(data_dir: Path, completion: Completion, at: datetime) -> None:
    """Append the request that ended at `at`. Raises WriteFailure; the answer itself is none the worse."""
    append(request_log(data_dir), request_record(completion, at))


def request_record(completion: Completion, at: datetime) -> dict[str, object]:
    """The record of a request that ended at `at`, a time with a zone."""
    model, stats, kv = completion.model, completion.stats, completion.kv
    return {
        "schema": SCHEMA,
        "time": at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "model": {
            "name": model.name,
            "arch": model.arch,
            "quant": model.quant,
            "size_bytes": model.size_bytes,
        },
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.generated_tokens,
            "reasoning_tokens": stats.reasoning_tokens,
            "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        },
        "timings": _timings(stats),
        "prefix_cache": {
            "memory_tokens": completion.prefix.memory_tokens,
            "checkpoint_tokens": completion.prefix.checkpoint_tokens,
            "disk_tokens": completion.prefix.disk_tokens,
            "miss_reason": completion.prefix.miss_reason,
        },
        "kv": {
            "tokens": kv.tokens,
            "capacity_tokens": kv.capacity_tokens,
            "used_bytes": kv.used_bytes,
            "allocated_bytes": kv.allocated_bytes,
            "type_k": kv.type_k,
            "type_v": kv.type_v,
        },
        "dropped_messages": completion.dropped_messages,
        "settings": _without_text(completion.settings),
    }


def _timings(stats: GenerationStats) -> dict[str, object]:
    itl = stats.itl
    return {
        "load_ms": _ms(stats.load_s),
        "ttft_ms": _ms(stats.ttft_s),
        "ttft_answer_ms": _ms(stats.ttft_answer_s),
        "queue_ms": _ms(stats.queue_s),
        "tokenize_ms": _ms(stats.tokenize_s),
        "cache_n": stats.cached_tokens,
        "prompt_n": stats.prefill_tokens,
        "prompt_ms": _ms(stats.prefill_s),
        "prompt_per_second": stats.prefill_rate,
        "predicted_n": stats.generated_tokens,
        "predicted_ms": _ms(stats.generation_s),
        "predicted_per_second": stats.generation_rate,
        "itl_ms": None
        if itl is None
        else {
            "mean": _ms(itl.mean_s),
            "p50": _ms(itl.p50_s),
            "p90": _ms(itl.p90_s),
            "p99": _ms(itl.p99_s),
            "max": _ms(itl.max_s),
        },
        "total_ms": _ms(stats.total_s),
    }


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s * 1000, 3)


def _without_text(settings: Mapping[str, object]) -> dict[str, object]:
    """Numbers, switches and words of the schema's fixed lists; what may be the user's own is left out."""
    kept: dict[str, object] = {}
    for name, value in settings.items():
        setting = BY_NAME.get(name)
        is_word = setting is not None and not setting.is_free_text and isinstance(value, str)
        if value is None or isinstance(value, bool | int | float) or is_word:
            kept[name] = value
    return kept
