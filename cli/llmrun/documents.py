"""The JSON contracts as pure functions: `llmrun.completion/1`, `llmrun.show/1`, `llmrun.vram/1`,
`llmrun.error/1`, and stream lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmrun.errors import LlmrunError
from llmrun.events import (
    Accepted,
    Completion,
    Event,
    Finished,
    GenerationStats,
    Likelihood,
    Loaded,
    PrefillProgress,
    Token,
    TokenChoice,
)
from llmrun.model_report import ArraySummary, ModelReport
from llmrun.vram_report import Use, VramReport

COMPLETION_SCHEMA = "llmrun.completion/1"
IMPOSSIBLE = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold."""

SHOW_SCHEMA = "llmrun.show/1"
VRAM_SCHEMA = "llmrun.vram/1"
ERROR_SCHEMA = "llmrun.error/1"


def dump(document: Mapping[str, object]) -> str:
    """One line of JSON; NaN and infinity are refused, since JSON has neither."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def completion_document(completion: Completion) -> dict[str, object]:
    """The `llmrun.completion/1` document."""
    stats, kv = completion.stats, completion.kv
    return {
        "schema": COMPLETION_SCHEMA,
        "model": asdict(completion.model),
        "text": completion.text,
        "reasoning": completion.reasoning,
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.generated_tokens,
            "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": stats.reasoning_tokens},
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
            "devices": [asdict(device) for device in kv.devices],
        },
        "dropped_messages": completion.dropped_messages,
        "summary": completion.summary or None,
        "logprobs": None if completion.choices is None else {"content": _logprobs(completion.choices)},
        "settings": dict(completion.settings),
    }


def _logprobs(choices: Sequence[TokenChoice]) -> list[dict[str, object]]:
    """As OpenAI's clients know them."""
    return [
        {**_likelihood(choice.chosen), "top_logprobs": [_likelihood(one) for one in choice.top]}
        for choice in choices
    ]


def _likelihood(one: Likelihood) -> dict[str, object]:
    return {
        "token": one.piece.decode("utf-8", "replace"),
        "id": one.token,
        "bytes": list(one.piece),
        "logprob": max(one.logprob, IMPOSSIBLE),
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
        else {name.removesuffix("_s"): _ms(value) for name, value in asdict(itl).items()},
        "total_ms": _ms(stats.total_s),
        "draft_n": 0,
        "draft_n_accepted": 0,
    }


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s * 1000, 3)


def stream_record(event: Event) -> dict[str, object] | None:
    """One line of `--stream json`, None for events that have none. Times count from the process's start."""
    match event:
        case Loaded():
            body: dict[str, Any] = {
                "event": "loaded",
                "t_ms": _ms(event.load_s),
                "model": asdict(event.model),
                "n_ctx": event.n_ctx,
                "n_threads": event.n_threads,
            }
        case Accepted():
            body = {"event": "accepted", "t_ms": _ms(event.t_s)}
        case PrefillProgress():
            body = {"event": "prefill", "t_ms": _ms(event.t_s), "done": event.done, "total": event.total}
        case Token():
            body = {
                "event": "token",
                "t_ms": _ms(event.t_s),
                "text": event.text,
                "n": event.n,
                "kind": event.kind,
            }
        case Finished():
            body = {"event": "finished", "t_ms": _ms(event.t_s), **completion_document(event.completion)}
        case _:
            return None
    return body


def error_document(error: LlmrunError) -> dict[str, object]:
    """The `llmrun.error/1` document."""
    return {
        "schema": ERROR_SCHEMA,
        "code": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "hint": error.hint,
    }


def error_record(error: LlmrunError, now_s: float) -> dict[str, object]:
    """The last line of a `--stream json` that failed."""
    return {"event": "error", "t_ms": _ms(now_s), **error_document(error)}


def show_document(
    report: ModelReport, *, metadata: bool = False, tensors: bool = False, template: bool = False
) -> dict[str, object]:
    """The `llmrun.show/1` document; the flags add what is long."""
    attention, experts, chat = report.attention, report.experts, report.template
    document: dict[str, object] = {
        "schema": SHOW_SCHEMA,
        "model": asdict(report.model),
        "kind": report.kind,
        "problem": report.problem or None,
        "warnings": list(report.warnings),
        "remote": None if report.remote is None else asdict(report.remote),
        "file": {
            "version": report.version,
            "complete": all(part.complete for part in report.parts),
            "parts": [asdict(part) for part in report.parts],
            "part": None if report.part is None else {"no": report.part[0], "count": report.part[1]},
        },
        "n_params": report.n_params,
        "n_layer": report.n_layer,
        "n_embd": report.n_embd,
        "n_head": list(attention.n_head),
        "n_head_kv": list(attention.n_head_kv),
        "head_size_k": attention.head_size_k,
        "head_size_v": attention.head_size_v,
        "n_ctx_train": report.n_ctx_train,
        "sliding_window": None if attention.window is None else asdict(attention.window),
        "experts": None if experts is None else asdict(experts),
        "kv_bytes_per_token": attention.kv_bytes_per_token,
        "kv_note": attention.kv_note or None,
        "vocabulary": asdict(report.vocabulary),
        "quantization": {
            "label": report.model.quant,
            "declared": report.declared_quant or None,
            "agrees": report.quant_agrees,
            "bits_per_weight": report.bits_per_weight,
        },
        "tensor_bytes": report.tensor_bytes,
        "tensor_types": [asdict(use) for use in report.tensor_types],
        "chat_template": {"status": chat.status, "reason": chat.reason or None, "named": list(chat.named)},
        "licence": {"name": report.licence or None, "link": report.licence_link or None},
        "sampling": {
            "file": {name: _json_value(value) for name, value in report.sampling.items()},
            "catalogue": dict(report.catalogue_sampling),
        },
        "languages": _json_value(report.languages),
        "tags": _json_value(report.tags),
    }
    if metadata:
        document["metadata"] = {key: _json_value(value) for key, value in report.metadata.items()}
    if tensors:
        document["tensors"] = [asdict(tensor) for tensor in report.tensors]
    if template:
        document["template"] = chat.text
    return document


def _json_value(value: object) -> object:
    """A value from a file; numbers that JSON cannot hold become null."""
    if isinstance(value, ArraySummary):
        return {"type": value.type, "length": value.length, "first": [_json_value(v) for v in value.first]}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def vram_document(report: VramReport) -> dict[str, object]:
    """The `llmrun.vram/1` document."""
    document: dict[str, object] = {
        "schema": VRAM_SCHEMA,
        "model": asdict(report.model),
        "remote": None if report.remote is None else asdict(report.remote),
        "method": report.method,
        "settings": asdict(report.settings),
        "devices": [
            {
                "name": device.name,
                "kind": device.kind,
                "free_bytes": device.free_bytes,
                "total_bytes": device.total_bytes,
                **_use(device.use),
                "fits": device.fits,
            }
            for device in report.devices
        ],
        "totals": _use(report.totals),
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "verdict": report.verdict,
        "max_ctx": report.max_ctx,
        "max_gpu_layers": report.max_gpu_layers,
        "max_ctx_auto": report.max_ctx_auto,
        "n_layers": report.n_layers,
        "n_cpu_moe": report.n_cpu_moe,
        "reserve_bytes": report.reserve_bytes,
        "grid": [asdict(cell) for cell in report.grid],
        "remedies": [asdict(remedy) for remedy in report.remedies],
        "warnings": list(report.warnings),
    }
    if report.steps:
        document["steps"] = [asdict(step) for step in report.steps]
    if report.verified:
        document["verified"] = [
            {
                "name": one.name,
                "formula": _use(one.formula),
                "engine": _use(one.engine),
                "measured": _use(one.measured),
            }
            for one in report.verified
        ]
    return document


def _use(use: Use) -> dict[str, int]:
    return {**asdict(use), "sum_bytes": use.sum_bytes}
