"""Two sides beside each other: tests that are the same but for what the sides differ in.

A side is one run or several of the same setup, of which the newest says what the side is. Sides compare
settings, builds or models, so a test is matched by what was asked (counts, depth, sequences, cache) and,
where a run has several subjects, by those of its values that vary within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmrun.bench.records import LLAMA_BENCH_KEYS
from llmrun.bench.stats import CONFIDENCE, mean_of_runs, ratio_interval
from llmrun.reports.bench_compare import Comparison, RatioRow

_SUBJECT = (
    "model_ref", "quant", "n_gpu_layers", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v",
    "flash_attn",
)  # fmt: skip
_SETUP = (
    *(key for key in LLAMA_BENCH_KEYS[: LLAMA_BENCH_KEYS.index("n_prompt")] if key != "model_filename"),
    "model_digest", "flash_attn_used", "n_gpu_layers_offloaded",
)  # fmt: skip
"""What a record says of build, machine, model and settings: equal where two runs may count as one side."""
Document = Mapping[str, object]
Labelled = Mapping[str, Sequence[Document]]


@dataclass(frozen=True, slots=True)
class Side:
    """Runs under one title, oldest first, each as its records (`record_document`)."""

    title: str
    runs: Sequence[Sequence[Document]]


def compare(first: Side, second: Side) -> Comparison:
    """Rate of the second side over the first for each test that the newest runs of both have."""
    newest = [side.runs[-1] for side in (first, second)]
    varying = [key for key in _SUBJECT if any(_varies(run, key) for run in newest)]
    left, right = ([_by_label(run, varying) for run in side.runs] for side in (first, second))
    both = [label for label in left[-1] if label in right[-1]]
    pairs = ((label, _of_test(label, left), _of_test(label, right)) for label in both)
    rows = tuple(_row(label, a, b) for label, a, b in pairs if a and b)
    only = len(left[-1]) - len(both), len(right[-1]) - len(both)
    return Comparison(first.title, second.title, rows, *only, CONFIDENCE)


def _varies(records: Sequence[Document], key: str) -> bool:
    return len({str(record.get(key)) for record in records}) > 1


def _by_label(records: Sequence[Document], varying: Sequence[str]) -> Labelled:
    found: dict[str, list[Document]] = {}
    for record in records:
        label = " ".join([*(f"{record.get(key)}" for key in varying), str(record.get("test"))])
        found.setdefault(label, []).append(record)
    return found


def _of_test(label: str, runs: Sequence[Labelled]) -> list[list[Document]]:
    """A test's records run by run, of the runs whose setup is that of the newest."""
    setups = [_setup(record) for record in runs[-1][label]]
    found = ([record for record in run.get(label, ()) if _setup(record) in setups] for run in runs)
    return [records for records in found if _samples(records)]


def _setup(record: Document) -> tuple[object, ...]:
    return tuple(record.get(key) for key in _SETUP)


def _row(label: str, first: Sequence[Sequence[Document]], second: Sequence[Sequence[Document]]) -> RatioRow:
    a, b = ([_samples(records) for records in side] for side in (first, second))
    flags = {flag for run in (*first, *second) for record in run for flag in _texts(record.get("flags"))}
    means = mean_of_runs(a), mean_of_runs(b)
    low, high = ratio_interval(a, b) or (None, None)
    return RatioRow(label, *means, means[1] / means[0], low, high, tuple(sorted(flags)), len(a), len(b))


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
