"""Which pictures a run holds: rates over depth, over parallel sequences, over models or quantizations.

Prompts and outputs get pictures of their own: their rates differ so much that one scale would hide the lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmrun.reports.bench import Chart, Point, Record, Series

_RATE = "tokens a second"
_PHASES = {"pp": "prefill", "tg": "decode"}
Key = Callable[[Record], object]


def charts(records: Sequence[Record]) -> tuple[Chart, ...]:
    """A chart of each phase over each of depth, sequences and model that takes at least two values."""
    found = []
    for kind, phase in _PHASES.items():
        chosen = [record for record in records if record.test.kind == kind]
        found += [
            _over(chosen, phase, "depth", "tokens of context", lambda r: r.test.n_depth),
            _over(chosen, phase, "sequences", "number computed at once", lambda r: r.test.n_parallel),
            _by_model(chosen, phase),
        ]
    return tuple(chart for chart in found if chart is not None)


def _over(
    records: Sequence[Record], phase: str, what: str, label: str, x: Callable[[Record], int]
) -> Chart | None:
    rows: dict[str, list[Point]] = {}
    for record in records:
        rows.setdefault(_name(record, records, without=what), []).append(_point(x(record), record))
    series = tuple(
        Series(name, tuple(sorted(points, key=lambda point: point.x)))
        for name, points in rows.items()
        if len({point.x for point in points}) > 1
    )
    return Chart(f"{phase} over {what}", label, _RATE, series) if series else None


def _point(x: float, record: Record) -> Point:
    return Point(x, record.spread.mean, record.spread.stddev, marked=bool(record.flags))


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
        parts.append(_short(subject.model_ref))
    return " ".join(parts)


def _short(model_ref: str) -> str:
    return model_ref.rsplit("/", 1)[-1].removesuffix(".gguf")


_SETTINGS: tuple[tuple[str, Key], ...] = (
    ("t", lambda r: r.subject.n_threads),
    ("ngl", lambda r: r.subject.n_gpu_layers),
    ("b", lambda r: r.subject.n_batch),
    ("ub", lambda r: r.subject.n_ubatch),
    ("k ", lambda r: r.subject.type_k),
    ("v ", lambda r: r.subject.type_v),
    ("fa ", lambda r: r.subject.flash_attn_used),
)


def _by_model(records: Sequence[Record], phase: str) -> Chart | None:
    """One place for each model, named by its quantization where they are one model in several."""
    files = list(dict.fromkeys(record.subject.model_filename for record in records))
    if len(files) < 2:
        return None
    subjects = [next(r.subject for r in records if r.subject.model_filename == file) for file in files]
    quants = [subject.quant for subject in subjects]
    one = len({subject.n_params for subject in subjects}) == 1
    refs = [subject.model_ref for subject in subjects]
    choices = (quants if one else [], [_short(ref) for ref in refs])
    names = next((names for names in choices if len(set(names)) == len(files)), refs)
    rows: dict[str, dict[float, Point]] = {}
    for record in records:
        place = float(files.index(record.subject.model_filename))
        rows.setdefault(record.test.name, {}).setdefault(place, _point(place, record))
    series = tuple(Series(name, tuple(points[x] for x in sorted(points))) for name, points in rows.items())
    return Chart(f"{phase} by model", "", _RATE, series, tuple(names))
