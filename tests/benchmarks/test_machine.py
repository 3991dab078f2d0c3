"""Who else computes, and the environment that measured programs get."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.amx_probe import has_amx
from benchmarks.machine import (
    CannotRun,
    Outcome,
    Usage,
    busy_note,
    busy_seconds,
    call,
    measurement,
    options,
    others_cores,
    private_environment,
    undisturbed,
)
from benchmarks.startup import Program, time_process


def test_busy_time_is_all_but_idle_and_waiting() -> None:
    hz = os.sysconf("SC_CLK_TCK")
    text = f"cpu  {1 * hz} {2 * hz} {3 * hz} {400 * hz} {500 * hz} {4 * hz} {5 * hz} {6 * hz} 0 0\ncpu0 1 1\n"
    assert busy_seconds(text) == pytest.approx(21)


def test_what_others_used_leaves_out_own_work() -> None:
    before = Usage(at_s=100.0, all_s=50.0, own_s=10.0)
    after = Usage(at_s=110.0, all_s=70.0, own_s=28.0)
    assert others_cores(before, after) == pytest.approx(0.2)
    assert others_cores(before, None) is None


def test_coarse_clocks_give_no_negative_use() -> None:
    assert others_cores(Usage(0.0, 0.0, 0.0), Usage(1.0, 1.99, 2.0)) == 0


@pytest.mark.parametrize(("cores", "busy"), [(0.0, False), (0.09, False), (0.11, True), (2.0, True)])
def test_a_busy_machine_is_marked(cores: float, busy: bool) -> None:
    assert ("BUSY" in busy_note(cores)) == busy


def test_disturbed_rounds_are_left_out_while_three_are_quiet() -> None:
    assert undisturbed([0.0, 0.9, 0.1, 0.02]) == [0, 2, 3]
    assert undisturbed([0.0, 0.9, 0.1]) == [0, 1, 2]
    assert undisturbed([None, None, None]) == [0, 1, 2]


def test_measured_programs_see_no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMRUN_TEMPERATURE", "2")
    monkeypatch.setenv("LLMRUN_DATA_DIR", "elsewhere")
    with private_environment() as environment:
        assert "LLMRUN_TEMPERATURE" not in environment
        assert environment["PATH"] == os.environ["PATH"]
        folders = [Path(environment[f"LLMRUN_{kind}_DIR"]) for kind in ("CONFIG", "DATA", "CACHE")]
        assert len({folder.parent for folder in folders}) == 1
        assert folders[0].parent.is_dir()
    assert not folders[0].parent.exists()


def measured(
    monkeypatch: pytest.MonkeyPatch, file: Path, met: bool | None, **document: object
) -> tuple[int, argparse.Namespace]:
    """Exit status of the frame around a measurement that finds that, and the options it was given."""
    seen: list[argparse.Namespace] = []

    def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
        seen.append(arguments)
        assert "LLMRUN_DATA_DIR" in environment
        if met is None:
            raise CannotRun("no tool")
        return Outcome("the title", lambda: met, document)

    monkeypatch.setattr(sys, "argv", ["x", "--model", "m.gguf", "-t", "3", "-o", str(file)])
    return measurement("x", options("It measures.", rounds=4), measure), seen[0]


@pytest.mark.parametrize(("met", "status"), [(True, 0), (False, 1), (None, 2)])
def test_the_frame_tells_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, met: bool | None, status: int
) -> None:
    ended, given = measured(monkeypatch, tmp_path / "x.json", met)
    assert ended == status
    assert (given.rounds, given.threads, given.model) == (4, 3, Path("m.gguf"))
    assert (tmp_path / "x.json").exists() == (met is not None)


def test_the_frame_writes_what_was_found_with_its_provenance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, tmp_path / "x.json", True, seconds=[1.5], others_cores=[0.25])
    written = json.loads((tmp_path / "x.json").read_text())
    assert (written["benchmark"], written["seconds"], written["others_cores"]) == ("x", [1.5], [0.25])
    assert written["provenance"]["threads"] == 3
    assert capsys.readouterr().out.startswith("the title\n")


def test_a_failing_program_is_reported_with_its_words() -> None:
    with pytest.raises(CannotRun, match=r"status 3(.|\n)*out of luck"):
        call(
            [sys.executable, "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"],
            os.environ,
        )


def test_first_output_and_end_are_timed_apart() -> None:
    script = "import sys, time; print('x', flush=True); time.sleep(0.05)"
    timing = time_process(Program((sys.executable, "-c", script), os.environ))
    assert 0 < timing.first_byte_s < timing.end_s


@pytest.mark.parametrize("script", ["pass", "print('x'); raise SystemExit(1)"])
def test_a_program_without_an_answer_is_no_timing(script: str) -> None:
    with pytest.raises(CannotRun):
        time_process(Program((sys.executable, "-c", script), os.environ))


@pytest.mark.parametrize(
    ("features", "amx"), [("avx2 amx_tile amx_int8", True), ("avx512f avx2", False), ("", False)]
)
def test_amx_is_read_from_the_cpu_features(features: str, amx: bool) -> None:
    assert has_amx(features) == amx
