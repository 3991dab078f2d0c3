"""The history of benchmarks: every test of every run, with what it was measured on.

One record a test, appended when the test is complete, so that a run that is interrupted or dies has left what
it measured. Records of one run share its id; a name is what the user gave it to compare with later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import UsageError
from llmrun.journal.lines import append, read

SCHEMA = "llmrun.bench_record/1"
LAST = "last"
"""Stands for the newest run."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run: its records as `llmrun bench -o json` prints them, in the order they were measured.

    `version`: of the program that measured it.
    """

    run_id: str
    name: str
    version: str
    records: tuple[Mapping[str, object], ...]

    @property
    def title(self) -> str:
        """What the user called it, else its id."""
        return self.name or self.run_id


def bench_history(data_dir: Path) -> Path:
    """The history's file in the data folder."""
    return data_dir / "bench.jsonl"


def log_bench(
    data_dir: Path, run_id: str, name: str, provenance: Mapping[str, object], record: Mapping[str, object]
) -> None:
    """Append one test. Raises WriteFailure; the measurement itself is none the worse."""
    entry = {"schema": SCHEMA, "run_id": run_id, "name": name, "provenance": provenance, "record": record}
    append(bench_history(data_dir), entry, sync=True)


def bench_runs(data_dir: Path) -> tuple[BenchRun, ...]:
    """All runs, oldest first; what cannot be read is left out.

    Raises:
        UsageError: the file cannot be opened.
    """
    runs: dict[str, tuple[str, str, list[Mapping[str, object]]]] = {}
    for entry in read(bench_history(data_dir)).records:
        run_id, record = entry.get("run_id"), entry.get("record")
        if entry.get("schema") == SCHEMA and isinstance(run_id, str) and isinstance(record, dict):
            made = entry.get("provenance")
            version = str(made.get("version") or "") if isinstance(made, dict) else ""
            runs.setdefault(run_id, (str(entry.get("name") or ""), version, []))[2].append(record)
    return tuple(BenchRun(run_id, name, made, tuple(found)) for run_id, (name, made, found) in runs.items())


def find_runs(runs: Sequence[BenchRun], wanted: str) -> tuple[BenchRun, ...]:
    """The runs of that name, the run of that id, or `last`, the newest of all; oldest first.

    A run with a name stands for all runs of its name that the same version of the program measured.

    Raises:
        UsageError: there is none; the hint lists the names there are.
    """
    by_name = [run for run in runs if run.name == wanted]
    by_id = [run for run in runs if run.run_id == wanted]
    if wanted == LAST and runs:
        by_name = [run for run in runs if run.name and run.name == runs[-1].name] or [runs[-1]]
    if by_name:
        return tuple(run for run in by_name if run.version == by_name[-1].version)
    if by_id:
        return tuple(by_id)
    names = list(dict.fromkeys(run.title for run in reversed(runs)))[:10]
    raise UsageError(
        f"no benchmark run is called {wanted!r}",
        f"there are: {', '.join(names)}" if names else "run `llmrun bench MODEL --save NAME` first",
    )
