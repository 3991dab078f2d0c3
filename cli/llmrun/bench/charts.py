"""Which pictures a run holds: rates over depth, over parallel sequences, over models or quantizations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmrun.bench_report import Chart, Record, Series

_RATE = "tokens a second"
Key = Callable[[Record], object]


def charts(records: Sequence[Record]) -> tuple[Chart, ...]:
    """A chart for each of depth, sequences and model that takes at least two values."""
    plain = [record for record in records if record.test.kind in ("pp", "tg")]
    found = (
        _over(plain, "depth", "tokens of context", lambda r: r.test.n_depth),
        _over(plain, "sequences", "sequences at once", lambda r: r.test.n_parallel),
        _by_model(plain),
    )
    return tuple(chart for chart in found if chart is not None)


def _over(records: Sequence[Record], what: str, label: str, x: Callable[[Record], int]) -> Chart | None:
    rows: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        rows.setdefault(_name(record, records, without=what), []).append((x(record), record.spread.mean))
    series = tuple(Series(name, tuple(sorted(points))) for name, points in rows.items() if _spans(points))
    return Chart(f"rate over {what}", label, _RATE, series) if series else None


def _spans(points: Sequence[tuple[float, float]]) -> bool:
    return len({x for x, _ in points}) > 1


def _name(record: Record, records: Sequence[Record], *, without: str) -> str:
    """The test and what else varies, less what the picture is drawn over."""
    test, subject = record.test, record.subject
    parts = [f"pp{test.n_prompt}" if test.n_prompt else f"tg{test.n_gen}"]
    if without != "depth" and test.n_depth:
        parts.append(f"@ d{test.n_depth}")
    if without != "sequences" and test.n_parallel > 1:
        parts.append(f"x{test.n_parallel}")
    for label, key in _SETTINGS:
        if len({key(one) for one in records}) > 1:
            parts.append(f"{label}{key(record)}")
    if len({one.subject.model_filename for one in records}) > 1:
        parts.append(subject.model_ref.rsplit("/", 1)[-1])
    return " ".join(parts)


_SETTINGS: tuple[tuple[str, Key], ...] = (
    ("t", lambda r: r.subject.n_threads),
    ("ngl", lambda r: r.subject.n_gpu_layers),
    ("b", lambda r: r.subject.n_batch),
    ("ub", lambda r: r.subject.n_ubatch),
    ("k ", lambda r: r.subject.type_k),
    ("v ", lambda r: r.subject.type_v),
    ("fa ", lambda r: r.subject.flash_attn_used),
)


def _by_model(records: Sequence[Record]) -> Chart | None:
    """One place for each model, named by its quantization where that tells them apart."""
    files = list(dict.fromkeys(record.subject.model_filename for record in records))
    if len(files) < 2:
        return None
    subjects = [next(r.subject for r in records if r.subject.model_filename == file) for file in files]
    quants = [subject.quant for subject in subjects]
    names = quants if len(set(quants)) == len(quants) else [s.model_ref.rsplit("/", 1)[-1] for s in subjects]
    rows: dict[str, dict[float, float]] = {}
    for record in records:
        place = float(files.index(record.subject.model_filename))
        rows.setdefault(record.test.name, {}).setdefault(place, record.spread.mean)
    series = tuple(Series(name, tuple(sorted(points.items()))) for name, points in rows.items())
    return Chart("rate by model", "", _RATE, series, tuple(names))
