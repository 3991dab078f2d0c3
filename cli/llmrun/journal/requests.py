"""The request log: what each request cost, never what was said.

One record a request with the counts and times of `llmrun.completion/1` under the same names. Text stays
out: prompt, answer, reasoning, system message and stop texts, and the model's path, which may name people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from llmrun.config.schema import BY_NAME
from llmrun.documents.requests import completion_document
from llmrun.events import Completion, PrefixReport
from llmrun.journal.lines import append

SCHEMA = "llmrun.request/1"
_FIGURES = ("finish_reason", "usage", "timings", "prefix_cache", "kv", "dropped_messages")


def request_log(data_dir: Path) -> Path:
    """The log's file in the data folder."""
    return data_dir / "requests.jsonl"


def log_request(data_dir: Path, completion: Completion, at: datetime) -> None:
    """Append the request that ended at `at`. Raises WriteFailure; the answer itself is none the worse."""
    append(request_log(data_dir), request_record(completion, at))


def request_record(completion: Completion, at: datetime) -> dict[str, object]:
    """The record of a request that ended at `at`, a time with a zone."""
    document = completion_document(replace(completion, prefix=_without_quotes(completion.prefix)))
    model = completion.model
    return {
        "schema": SCHEMA,
        "time": at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "model": {
            "name": model.name,
            "arch": model.arch,
            "quant": model.quant,
            "size_bytes": model.size_bytes,
        },
        **{name: document[name] for name in _FIGURES},
        "settings": _without_text(completion.settings),
    }


def _without_quotes(prefix: PrefixReport) -> PrefixReport:
    """A reason that quotes where two prompts differ keeps the place and loses the words."""
    reason, quoted, _ = prefix.miss_reason.partition(' ("')
    return replace(prefix, miss_reason=reason, difference=None) if quoted else prefix


def _without_text(settings: Mapping[str, object]) -> dict[str, object]:
    """Numbers, switches and words of the schema's fixed lists; what may be the user's own is left out."""
    kept: dict[str, object] = {}
    for name, value in settings.items():
        setting = BY_NAME.get(name)
        is_word = setting is not None and not setting.is_free_text and isinstance(value, str)
        if value is None or isinstance(value, bool | int | float) or is_word:
            kept[name] = value
    return kept
