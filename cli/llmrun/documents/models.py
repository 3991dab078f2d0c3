"""The JSON contracts of what is known of a model before it runs: `llmrun.show/1` and `llmrun.vram/1`."""

from __future__ import annotations

import math
from dataclasses import asdict

from llmrun.reports.model import ArraySummary, ModelReport
from llmrun.reports.vram import Buckets, VramReport

SHOW_SCHEMA = "llmrun.show/1"
VRAM_SCHEMA = "llmrun.vram/1"


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


def _use(use: Buckets) -> dict[str, int]:
    return {**asdict(use), "sum_bytes": use.sum_bytes}
