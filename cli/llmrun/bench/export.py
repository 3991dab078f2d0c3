"""Records as llama-bench prints them: a Markdown table, CSV, JSON lines, a JSON array, or our envelope.

Columns of the table are llama-bench's: a setting is shown where it varies or is not its default. Ours come
last, and only where a run has them. A figure that something may have disturbed carries the reason in
brackets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from llmrun.bench.records import LLAMA_BENCH_KEYS, OWN_KEYS, SAMPLE_KEYS, record_document
from llmrun.documents.requests import error_document
from llmrun.reports.bench import BenchReport, Record, Table
from llmrun.reports.bench_compare import Comparison
from llmrun.units import GIB, MIB

BENCH_SCHEMA = "llmrun.bench/1"
COMPARE_SCHEMA = "llmrun.bench_compare/1"
INCOMPLETE = "incomplete"
"""Flag of every record in an array whose run was interrupted: an array has no place of its own for it."""

CSV_KEYS = (*LLAMA_BENCH_KEYS, *SAMPLE_KEYS, *OWN_KEYS)
RATES = "t/s"
"""Name of the column with the rates."""
_BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    cell: Callable[[Record], str]
    default: object = None
    value: Callable[[Record], object] | None = None

    def shown(self, records: Sequence[Record]) -> bool:
        """Always for a column without a default; else where some record departs from it."""
        return self.value is None or any(self.value(record) != self.default for record in records)


def _setting(name: str, attribute: str, width: int, default: object) -> _Column:
    def value(record: Record) -> object:
        return getattr(record.subject, attribute)

    return _Column(name, width, lambda record: str(value(record)), default, value)


def _is_cpu(record: Record) -> bool:
    return any(name in record.subject.backends for name in ("CPU", "BLAS", "ZenDNN"))


def _times(name: str, width: int, cell: Callable[[Record], str]) -> _Column:
    return _Column(
        name, width, lambda r: cell(r) if r.request else "", False, lambda r: r.request is not None
    )


def _ttft(record: Record) -> str:
    return "" if record.request is None else f"{record.request.ttft_s * 1000:.1f}"


def _itl(record: Record) -> str:
    request = record.request
    return "" if request is None or request.itl is None else f"{request.itl.mean_s * 1000:.2f}"


_COLUMNS = (
    _Column("model", -30, lambda r: r.subject.model_type),
    _Column("size", 10, lambda r: size_text(r.subject.model_bytes)),
    _Column("params", 10, lambda r: params_text(r.subject.n_params)),
    _Column("backend", -10, lambda r: r.subject.backends),
    _Column("ngl", 3, lambda r: str(r.subject.n_gpu_layers), True, _is_cpu),
    _setting("n_cpu_moe", "n_cpu_moe", 10, 0),
    _Column("threads", 7, lambda r: str(r.subject.n_threads), False, _is_cpu),
    _setting("n_batch", "n_batch", 7, 2048),
    _setting("n_ubatch", "n_ubatch", 8, 512),
    _setting("type_k", "type_k", 6, "f16"),
    _setting("type_v", "type_v", 6, "f16"),
    _setting("nkvo", "no_kv_offload", 10, False),
    _setting("fa", "flash_attn", 3, -1),
    _setting("lm", "load_mode", 10, "mmap"),
    _Column("test", 15, lambda r: r.test.name),
    _Column(RATES, 20, lambda record: rate_text(record)),  # noqa: PLW0108 defined below
    _Column("t/s each", 10, lambda r: f"{r.per_request_rate:.2f}", 1, lambda r: r.test.n_parallel),
    _times("ttft ms", 10, _ttft),
    _times("itl ms", 8, _itl),
)


def size_text(size_bytes: int) -> str:
    """MiB below a GiB, then GiB, two decimals."""
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.2f} MiB"


def params_text(n_params: int) -> str:
    """Millions below a billion, then billions, two decimals."""
    return f"{n_params / 1e9:.2f} B" if n_params >= _BILLION else f"{n_params / 1e6:.2f} M"


def rate_text(record: Record) -> str:
    """Mean and standard deviation, `120.60 ± 0.59`."""
    return f"{record.spread.mean:.2f} ± {record.spread.stddev:.2f}"


def table(records: Sequence[Record]) -> Table:
    """The records as cells; columns follow from what they hold."""
    columns = [column for column in _COLUMNS if column.shown(records)]
    return Table(
        tuple(column.name for column in columns),
        tuple(column.width for column in columns),
        tuple(tuple(column.cell(record) for column in columns) for record in records),
        tuple(record.flags for record in records),
    )


def markdown(report: BenchReport) -> str:
    """llama-bench's table and its line on the build; nothing where nothing was measured."""
    if not report.records:
        return ""
    cells = table(report.records)
    lines = [_row(cells.names, cells.widths), _rule(cells.widths)]
    rates = cells.names.index(RATES)
    for row, marks in zip(cells.rows, cells.marks, strict=True):
        marked = f"{row[rates]} [{', '.join(marks)}]" if marks else row[rates]
        lines.append(_row([*row[:rates], marked, *row[rates + 1 :]], cells.widths))
    lines += ["", f"build: {report.records[0].subject.build}"]
    if not report.complete:
        lines.append(incomplete_text(report))
    return "\n".join(lines) + "\n"


def incomplete_text(report: BenchReport) -> str:
    """Why a run is not complete."""
    return f"incomplete: {'the run was interrupted' if report.failure is None else report.failure.message}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(
        ["|", *(f" {_aligned(c.replace('|', ' '), w)} |" for c, w in zip(cells, widths, strict=True))]
    )


def _aligned(cell: str, width: int) -> str:
    return cell.ljust(-width) if width < 0 else cell.rjust(width)


def _rule(widths: Sequence[int]) -> str:
    return "".join(["|", *(f" {'-' * (abs(w) - 1)}{':' if w > 0 else '-'} |" for w in widths)])


def csv_header() -> str:
    """Names of the columns: llama-bench's, then ours."""
    return ",".join(CSV_KEYS) + "\n"


def csv_line(record: Record) -> str:
    """Every value in quotes; lists and objects as JSON."""
    document = record_document(record)
    return ",".join(_quoted(document[key]) for key in CSV_KEYS) + "\n"


def _quoted(value: object) -> str:
    match value:
        case None:
            text = ""
        case bool():
            text = str(int(value))
        case float():
            text = f"{value:.6f}"
        case list() | dict():
            text = json.dumps(value)
        case _:
            text = str(value)
    return '"' + text.replace('"', '""') + '"'


def json_line(record: Record) -> str:
    """The record on one line."""
    return json.dumps(record_document(record), ensure_ascii=False, allow_nan=False) + "\n"


def json_array(report: BenchReport) -> str:
    """An array of the records, as llama-bench writes it."""
    records = [_marked(record_document(record), report) for record in report.records]
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _marked(document: dict[str, object], report: BenchReport) -> dict[str, object]:
    flags = document["flags"]
    if not report.complete and isinstance(flags, list):
        flags.append(INCOMPLETE)
    return document


def bench_document(report: BenchReport, provenance: Mapping[str, object]) -> dict[str, object]:
    """The `llmrun.bench/1` document."""
    return {
        "schema": BENCH_SCHEMA,
        "complete": report.complete,
        "error": None if report.failure is None else error_document(report.failure),
        "run_id": report.run_id,
        "provenance": dict(provenance),
        "bandwidth": {
            "bytes_per_s": report.bandwidth_bytes_per_s,
            "measured_at": report.bandwidth_measured_at or None,
            "busy": report.bandwidth_busy,
        },
        "records": [record_document(record) for record in report.records],
        "verdicts": [
            {**asdict(verdict), "phase": verdict.phase, "share": round(verdict.share, 4)}
            for verdict in report.verdicts
        ],
    }


def compare_document(comparison: Comparison) -> dict[str, object]:
    """The `llmrun.bench_compare/1` document."""
    return {
        "schema": COMPARE_SCHEMA,
        "first": comparison.first,
        "second": comparison.second,
        "confidence": comparison.confidence,
        "only_first": comparison.only_first,
        "only_second": comparison.only_second,
        "tests": [
            {**asdict(row), "over_runs": row.over_runs, "difference_shown": row.shown}
            for row in comparison.rows
        ],
    }
