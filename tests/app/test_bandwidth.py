"""The bandwidth of this machine: measured once, remembered, measured again when that was too early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrun.app.bench import bandwidth
from llmrun.app.bench.bandwidth import ReadBandwidth, read_bandwidth
from llmrun.app.bench.machine import Watch
from llmrun.bench.disturbance import Disturbance


class Machine:
    """Measures what it is told, and notes how often."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.calls: list[int] = []

    def measure(self, n_threads: int, free_bytes: int) -> float:
        assert free_bytes > 0
        self.calls.append(n_threads)
        return self.rate


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Cores that other programs use; the last entry counts."""
    used: list[float | None] = [0.0]
    monkeypatch.setattr(Watch, "lap", lambda _self: Disturbance(others_cores=used[-1]))
    return used


def find(folder: Path, machine: Machine, n_threads: int = 2) -> ReadBandwidth:
    return read_bandwidth(n_threads, folder=folder / "probe", measure=machine.measure)


def test_a_quiet_measurement_is_remembered(tmp_path: Path) -> None:
    machine = Machine(40e9)
    first = find(tmp_path, machine)
    machine.rate = 1.0
    assert find(tmp_path, machine) == first
    assert (first.bytes_per_s, first.n_threads, first.busy, machine.calls) == (40e9, 2, False, [2])


def test_each_number_of_threads_has_its_own(tmp_path: Path) -> None:
    machine = Machine(40e9)
    find(tmp_path, machine, 2)
    machine.rate = 25e9
    assert find(tmp_path, machine, 1).bytes_per_s == 25e9
    assert find(tmp_path, machine, 2).bytes_per_s == 40e9


def test_a_busy_figure_gives_way_to_a_quiet_one(tmp_path: Path, others: list[float | None]) -> None:
    machine = Machine(10e9)
    others.append(1.5)
    assert find(tmp_path, machine).busy
    others.append(0.0)
    machine.rate = 40e9
    quiet = find(tmp_path, machine)
    assert (quiet.bytes_per_s, quiet.busy) == (40e9, False)


def test_of_two_busy_figures_the_larger_stays(tmp_path: Path, others: list[float | None]) -> None:
    others.append(1.5)
    machine = Machine(20e9)
    find(tmp_path, machine)
    machine.rate = 10e9
    assert find(tmp_path, machine).bytes_per_s == 20e9
    machine.rate = 30e9
    assert find(tmp_path, machine).bytes_per_s == 30e9


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "llmrun.bandwidth/2"}', "null", "\x00"])
def test_a_damaged_memory_is_measured_again(tmp_path: Path, content: str) -> None:
    machine = Machine(40e9)
    find(tmp_path, machine)
    (path,) = (tmp_path / "probe").iterdir()
    path.write_text(content)
    assert find(tmp_path, machine).bytes_per_s == 40e9
    assert machine.calls == [2, 2]
    assert json.loads(path.read_text())["schema"] == bandwidth.SCHEMA


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "probe").write_text("a file")
    assert find(tmp_path, Machine(40e9)).bytes_per_s == 40e9
