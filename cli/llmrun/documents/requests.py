"""The JSON contracts of requests as pure functions: `llmrun.completion/1`, `llmrun.error/1`, stream lines."""

from __future__ import annotations

import json
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

COMPLETION_SCHEMA = "llmrun.completion/1"
IMPOSSIBLE = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold."""

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
