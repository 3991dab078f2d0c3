"""The JSON contracts of smaller reports as pure functions: estimate, doctor, cache, config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from llmrun.reports.cache import CacheReport
from llmrun.reports.doctor import DoctorReport
from llmrun.reports.estimate import EstimateReport, PhaseTimes, RateUsed

DOCTOR_SCHEMA = "llmrun.doctor/1"
CACHE_SCHEMA = "llmrun.cache/1"
CONFIG_SCHEMA = "llmrun.config/1"
ESTIMATE_SCHEMA = "llmrun.estimate/1"


def doctor_document(report: DoctorReport) -> dict[str, object]:
    """The `llmrun.doctor/1` document."""
    return {
        "schema": DOCTOR_SCHEMA,
        "exit_code": report.exit_code,
        "findings": [
            {
                "check": found.check,
                "level": found.level,
                "message": found.text,
                "hint": found.todo,
                "exit_code": found.exit_code,
                "data": dict(found.data),
            }
            for found in report.findings
        ],
    }


def cache_document(report: CacheReport) -> dict[str, object]:
    """The `llmrun.cache/1` document."""
    return {"schema": CACHE_SCHEMA, **asdict(report)}


def config_document(settings: Mapping[str, object], sources: Mapping[str, str]) -> dict[str, object]:
    """The `llmrun.config/1` document: the value and the source of each setting, by its name."""
    return {"schema": CONFIG_SCHEMA, "settings": dict(settings), "sources": dict(sources)}


def estimate_document(report: EstimateReport) -> dict[str, object]:
    """The `llmrun.estimate/1` document."""
    ceiling = report.ceiling
    return {
        "schema": ESTIMATE_SCHEMA,
        "model": None if report.model is None else asdict(report.model),
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "output_tokens": report.output_tokens,
        **_phases(report.times),
        "rates": {"prefill": _rate(report.prefill), "decode": _rate(report.decode), "note": report.note},
        "ceiling": None if ceiling is None else {**asdict(ceiling), "tokens_per_s": ceiling.rate},
        "levers": [
            {
                "kind": lever.kind,
                "value": lever.value,
                "requests": lever.requests,
                **_phases(lever.times),
                "before_ms": _ms(lever.before_s),
                "gain": lever.gain,
                "bound": lever.bound,
            }
            for lever in report.levers
        ],
        "texts": [
            {
                **asdict(text),
                "characters_per_token": text.characters_per_token,
                "bytes_per_token": text.bytes_per_token,
            }
            for text in report.texts
        ],
    }


def _phases(times: PhaseTimes) -> dict[str, object]:
    return {
        "ttft_ms": _ms(times.ttft_s),
        "prefill_ms": _ms(times.prefill_s),
        "decode_ms": _ms(times.decode_s),
        "total_ms": _ms(times.total_s),
        "prefill_share": times.prefill_share,
        "decode_share": times.decode_share,
    }


def _rate(used: RateUsed) -> dict[str, object]:
    return {
        "source": used.source,
        "tokens_per_s": used.rate,
        "points": [{"depth": depth, "tokens_per_s": rate} for depth, rate in used.points],
        "beyond_measured": used.beyond,
    }


def _ms(time_s: float) -> float:
    return round(time_s * 1000, 3)
