"""The self-check before repacked weights are used, and libraries that do not work at all."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.engine import amx
from llmrun.engine.amx import cpu_flags, decide, extra_bufts_are_safe, judge
from llmrun.engine.bindings import library_path
from llmrun.engine.probe.client import ProbeOutcome, run_compute_probe
from llmrun.engine.probe.tiny_model import write_q4_0_model
from llmrun.errors import EngineFailure
from llmrun.gguf.reader import read_header

SAFE = ProbeOutcome(("plain", "extra"), 0)
CRASH = ProbeOutcome(("plain",), -signal.SIGSEGV)
CPU = frozenset({"avx2", "amx_tile"})


class TestJudge:
    def test_a_child_that_passes_is_safe(self) -> None:
        assert judge(SAFE) is True

    @pytest.mark.parametrize("signal_", [signal.SIGSEGV, signal.SIGILL, signal.SIGBUS])
    def test_a_crash_of_the_repacked_kernels_alone_is_unsafe(
        self, signal_: signal.Signals, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "llmrun.engine"):
            assert judge(ProbeOutcome(("plain",), -signal_)) is False
        assert signal_.name in caplog.text

    @pytest.mark.parametrize(
        ("outcome", "word"),
        [
            (ProbeOutcome((), -signal.SIGSEGV), "SIGSEGV"),
            (ProbeOutcome((), -signal.SIGILL), "SIGILL"),
            (ProbeOutcome(("plain",), -signal.SIGKILL), "SIGKILL"),
            (ProbeOutcome(("plain",), 1, "MemoryError"), "MemoryError"),
            (ProbeOutcome((), 1, "No module named llmrun"), "No module named llmrun"),
            (ProbeOutcome((), 1, "It did not end within 60 s."), "did not end"),
            (ProbeOutcome((), 0), "status 0"),
            (ProbeOutcome(("extra",), 0), "status 0"),
            (ProbeOutcome(("plain", "extra"), 3), "status 3"),
        ],
    )
    def test_anything_else_is_a_failure_of_the_engine(self, outcome: ProbeOutcome, word: str) -> None:
        with pytest.raises(EngineFailure, match=word):
            judge(outcome)


class TestMemory:
    @pytest.fixture
    def library(self, tmp_path: Path) -> Path:
        path = tmp_path / "lib" / "libllama.so"
        path.parent.mkdir()
        path.write_bytes(b"one build")
        return path

    def decide(self, library: Path, folder: Path, *outcomes: ProbeOutcome, cpu: frozenset[str] = CPU) -> bool:
        """The verdict when the probe may run once for each of `outcomes`, and must."""
        left = list(outcomes)
        verdict = decide(str(library), cpu, folder, lambda: left.pop(0))
        assert not left
        return verdict

    @pytest.mark.parametrize("outcome", [SAFE, CRASH])
    def test_a_verdict_is_found_once(self, library: Path, tmp_path: Path, outcome: ProbeOutcome) -> None:
        folder = tmp_path / "deep" / "probe"
        verdict = self.decide(library, folder, outcome)
        assert self.decide(library, folder) is verdict is (outcome is SAFE)
        assert [path.suffix for path in folder.iterdir()] == [".json"]

    def test_another_build_or_cpu_is_probed_anew(self, library: Path, tmp_path: Path) -> None:
        assert self.decide(library, tmp_path / "p", SAFE) is True
        assert self.decide(library, tmp_path / "p", CRASH, cpu=CPU | {"amx_bf16"}) is False
        library.write_bytes(b"the next build")
        assert self.decide(library, tmp_path / "p", CRASH) is False
        os.utime(library, ns=(0, 0))
        assert self.decide(library, tmp_path / "p", SAFE) is True

    def test_another_cpu_library_beside_it_is_probed_anew(self, library: Path, tmp_path: Path) -> None:
        kernels = library.with_name("libggml-cpu.so.0")
        kernels.write_bytes(b"one build")
        assert self.decide(library, tmp_path / "p", CRASH) is False
        assert self.decide(library, tmp_path / "p") is False
        kernels.write_bytes(b"a build without the fault")
        assert self.decide(library, tmp_path / "p", SAFE) is True

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"extra_bufts_safe": 1}', "\udcff"])
    def test_a_damaged_memory_costs_a_probe(self, library: Path, tmp_path: Path, content: str) -> None:
        folder = tmp_path / "p"
        self.decide(library, folder, CRASH)
        (path,) = folder.iterdir()
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        assert self.decide(library, folder, SAFE) is True
        assert json.loads(path.read_text()) == {"extra_bufts_safe": True}

    def test_a_memory_that_cannot_be_written_costs_a_probe(self, library: Path, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("not a folder")
        assert self.decide(library, blocked / "probe", SAFE) is True
        assert self.decide(library, blocked / "probe", CRASH) is False

    def test_a_failure_is_not_remembered(self, library: Path, tmp_path: Path) -> None:
        with pytest.raises(EngineFailure):
            self.decide(library, tmp_path / "p", ProbeOutcome((), 1))
        assert self.decide(library, tmp_path / "p", SAFE) is True


def test_only_a_cpu_with_amx_is_probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(amx, "run_compute_probe", lambda: CRASH)
    cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2 {}\nbugs\t\t: none\n"
    for flag, safe in (("sse2", True), ("amx_tile", False), ("amx_int8", False)):
        text = cpuinfo.format(flag)
        monkeypatch.setattr(amx, "read_text", lambda _, text=text: text)
        assert extra_bufts_are_safe(library_path()) is safe
    monkeypatch.setattr(amx, "read_text", lambda _: None)
    assert extra_bufts_are_safe(library_path()) is True


def test_cpu_flags() -> None:
    assert cpu_flags("model name: x\nflags : a b\nflags : c\n") == {"a", "b"}
    assert cpu_flags("") == frozenset()


class TestChild:
    def test_it_judges_this_machine(self) -> None:
        outcome = run_compute_probe()
        assert outcome.stages[0] == "plain"
        assert judge(outcome) is (outcome == SAFE)

    def test_files_in_the_working_folder_are_not_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("tempfile.py", "threading.py", "llmrun.py"):
            (tmp_path / name).write_text("raise SystemExit('wrong module')")
        monkeypatch.chdir(tmp_path)
        assert run_compute_probe().stages[0] == "plain"

    def test_a_child_that_hangs_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("llmrun.engine.probe.client._TIMEOUT_S", 0.01)
        outcome = run_compute_probe()
        assert "did not end" in outcome.detail
        with pytest.raises(EngineFailure, match="did not end"):
            judge(outcome)

    def test_its_model_is_a_sound_file_and_always_the_same(self, tmp_path: Path) -> None:
        paths = [tmp_path / name for name in ("a.gguf", "b.gguf")]
        for path in paths:
            write_q4_0_model(path)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        header = read_header(paths[0])
        assert header.file_bytes is not None
        assert header.file_bytes >= header.needed_bytes

    def test_it_tells_how_it_is_used(self) -> None:
        command = [sys.executable, "-m", "llmrun.engine.probe", "frobnicate"]
        child = subprocess.run(command, capture_output=True, check=False)
        assert (child.returncode, child.stdout) == (1, b"")


_LOAD_LIBRARY_TWICE = """
import importlib.util, sys
from llmrun.engine.bindings import library
from llmrun.errors import EngineFailure
codes = []
for _ in range(2):
    try:
        library()
    except EngineFailure as error:
        codes.append(error.exit_code)
importlib.util.find_spec("llama_cpp")
sys.exit(7 if codes == [7, 7] else 1)
"""


@pytest.mark.parametrize("kind", ["absent", "empty", "noise", "foreign"])
def test_a_library_that_cannot_be_loaded_is_an_engine_failure(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "libllama.so"
    if kind == "foreign":  # a sound library without llama.cpp's functions
        shutil.copy(Path(library_path()).with_name("libggml-base.so.0"), target)
    elif kind != "absent":
        target.write_bytes(b"" if kind == "empty" else bytes(range(256)) * 40)
    child = subprocess.run(
        [sys.executable, "-c", _LOAD_LIBRARY_TWICE],
        env=os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (child.returncode, child.stdout) == (7, b""), child.stderr.decode()
