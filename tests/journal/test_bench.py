"""The history of benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.bench import bench_history, bench_runs, find_runs, log_bench


def log(folder: Path, run_id: str, name: str, test: str, version: str = "1") -> None:
    log_bench(folder, run_id, name, {"version": version}, {"test": test})


def found(folder: Path, wanted: str) -> list[str]:
    return [run.run_id for run in find_runs(bench_runs(folder), wanted)]


def test_records_of_a_run_stay_together_in_order(tmp_path: Path) -> None:
    for run_id, test in (("1", "pp8"), ("2", "pp8"), ("1", "tg4")):
        log(tmp_path, run_id, "", test)
    runs = bench_runs(tmp_path)
    assert [run.run_id for run in runs] == ["1", "2"]
    assert [record["test"] for record in runs[0].records] == ["pp8", "tg4"]


def test_a_name_is_all_its_runs_an_id_one(tmp_path: Path) -> None:
    for run_id, name in (("1", "base"), ("2", ""), ("3", "base"), ("4", "")):
        log(tmp_path, run_id, name, "pp8")
    assert found(tmp_path, "base") == ["1", "3"]
    assert found(tmp_path, "3") == ["3"]
    assert found(tmp_path, "2") == ["2"]
    assert found(tmp_path, "last") == ["4"]


def test_the_last_run_stands_for_its_name(tmp_path: Path) -> None:
    for run_id, name in (("1", "base"), ("2", ""), ("3", "base")):
        log(tmp_path, run_id, name, "pp8")
    assert found(tmp_path, "last") == ["1", "3"]


def test_runs_of_another_version_are_another_side(tmp_path: Path) -> None:
    for run_id, version in (("1", "1"), ("2", "2"), ("3", "2")):
        log(tmp_path, run_id, "base", "pp8", version)
    assert found(tmp_path, "base") == ["2", "3"]
    assert found(tmp_path, "1") == ["1"]


def test_no_name_takes_the_place_of_the_last_run(tmp_path: Path) -> None:
    log(tmp_path, "1", "last", "pp8")
    log(tmp_path, "2", "", "pp8")
    assert found(tmp_path, "last") == ["2"]


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as none:
        find_runs(bench_runs(tmp_path), "last")
    assert "--save" in none.value.hint
    log(tmp_path, "1", "base", "pp8")
    with pytest.raises(UsageError) as unknown:
        find_runs(bench_runs(tmp_path), "bse")
    assert "base" in unknown.value.hint


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    log(tmp_path, "1", "", "pp8")
    with bench_history(tmp_path).open("ab") as file:
        file.write(
            b'{"schema":"llmrun.bench_record/1"}\n{"schema":"other/1","run_id":"x","record":{}}\nrubbish\n'
        )
    log(tmp_path, "2", "", "pp8")
    assert [run.run_id for run in bench_runs(tmp_path)] == ["1", "2"]


def test_a_history_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailure):
        log(tmp_path / "file", "1", "", "pp8")
