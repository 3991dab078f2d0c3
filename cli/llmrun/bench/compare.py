"""Two runs side by side: tests that are the same but for what the runs differ in.

Runs compare settings, builds or models, so a test is matched by what was asked (counts, depth, sequences,
cache) and, where a run has several subjects, by those of its values that vary within it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from llmrun.bench.stats import CONFIDENCE, ratio_interval
from llmrun.reports.bench import Comparison, RatioRow

_SUBJECT = (
    "model_ref", "quant", "n_gpu_layers", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v",
    "flash_attn",
)  # fmt: skip
Document = Mapping[str, object]


def compare(first: tuple[str, Sequence[Document]], second: tuple[str, Sequence[Document]]) -> Comparison:
    """Rate of the second over the first for each test both have; names and records as `record_document`."""
    varying = [key for key in _SUBJECT if _varies(first[1], key) or _varies(second[1], key)]
    left, right = _by_label(first[1], varying), _by_label(second[1], varying)
    both = [label for label in left if label in right]
    return Comparison(
        first[0],
        second[0],
        tuple(_row(label, left[label], right[label]) for label in both),
        len(left) - len(both),
        len(right) - len(both),
        CONFIDENCE,
    )


def _varies(records: Sequence[Document], key: str) -> bool:
    return len({str(record.get(key)) for record in records}) > 1


def _by_label(records: Sequence[Document], varying: Sequence[str]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for record in records:
        label = " ".join([*(f"{record.get(key)}" for key in varying), str(record.get("test"))])
        found.setdefault(label, []).append(record)
    return found


def _row(label: str, first: Sequence[Document], second: Sequence[Document]) -> RatioRow:
    a, b = _samples(first), _samples(second)
    interval = ratio_interval(a, b)
    means = statistics.fmean(a), statistics.fmean(b)
    flags = sorted({flag for record in (*first, *second) for flag in _texts(record.get("flags"))})
    low, high = interval or (None, None)
    return RatioRow(label, *means, means[1] / means[0], low, high, tuple(flags))


def _samples(records: Sequence[Document]) -> list[float]:
    return [
        float(rate)
        for record in records
        for rate in _items(record.get("samples_ts"))
        if isinstance(rate, int | float) and rate > 0
    ]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [item for item in _items(value) if isinstance(item, str)]
