"""The library's log: never on the terminal, line by line in `logging`, its last lines at hand."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrun.engine.bindings import NativeLog, devices, library_path, library_version, native_function
from llmrun.errors import EngineFailure

from tests.support.models import gemma_path, smollm2_path

DEBUG, INFO, WARN, ERROR, CONTINUED = 1, 2, 3, 4, 5

_LOAD_AND_ANSWER = """
import sys, threading
from llmrun.engine.api import *
from llmrun.engine.llama import open_engine
engine = open_engine(
    ModelParams(sys.argv[1], gpu_layers=0), ContextParams(n_ctx=256), lambda _: None, threading.Event()
)
job = Job(0, engine.tokenize("Hello", add_special=True, parse_special=False), SamplingParams(seed=1), 3)
assert sum(isinstance(step, TokenStep) for step in engine.run([job])) > 0
engine.close()
try:
    open_engine(ModelParams("/nothing"), ContextParams(), lambda _: None, threading.Event())
except Exception as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    "model", [smollm2_path, pytest.param(gemma_path, marks=pytest.mark.slow)], ids=["smollm2", "gemma"]
)
def test_nothing_reaches_the_terminal(model: Callable[[], Path]) -> None:
    child = subprocess.run(
        [sys.executable, "-c", _LOAD_AND_ANSWER, str(model())], capture_output=True, check=False
    )
    assert (child.stdout, child.stderr, child.returncode) == (b"", b"", 4)


class TestLines:
    def records(self, caplog: pytest.LogCaptureFixture, *calls: tuple[int, str]) -> list[tuple[int, str]]:
        with caplog.at_level(logging.DEBUG, "llmrun.native"):
            log = NativeLog()
            for level, text in calls:
                log.write(level, text)
        return [(record.levelno, record.getMessage()) for record in caplog.records]

    def test_levels_are_mapped(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = [(DEBUG, "d\n"), (INFO, "i\n"), (WARN, "w\n"), (ERROR, "e\n"), (0, "n\n")]
        assert self.records(caplog, *calls) == [
            (logging.DEBUG, "d"),
            (logging.INFO, "i"),
            (logging.WARNING, "w"),
            (logging.ERROR, "e"),
            (logging.INFO, "n"),
        ]

    def test_parts_are_joined_at_the_level_of_the_first(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = [(WARN, "one "), (CONTINUED, "two"), (CONTINUED, " three\nfour\n\n")]
        assert self.records(caplog, *calls) == [(logging.WARNING, "one two three"), (logging.WARNING, "four")]

    def test_a_percent_sign_is_no_format(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.records(caplog, (INFO, "100 %s %d\n")) == [(logging.INFO, "100 %s %d")]

    def test_the_last_error_is_kept_and_forgotten(self) -> None:
        log = NativeLog()
        log.write(ERROR, "first\n")
        log.write(ERROR, "  second \n")
        log.write(INFO, "third\n")
        assert log.last_error == "second"
        log.clear()
        assert (log.last_error, list(log.lines)) == ("", [])

    def test_threads_do_not_tear_each_other_s_lines(self) -> None:
        log = NativeLog()
        log.write(WARN, "one ")
        other = threading.Thread(target=log.write, args=(ERROR, "another\n"))
        other.start()
        other.join()
        log.write(CONTINUED, "line\n")
        assert (log.lines, log.last_error) == (["another", "one line"], "another")

    def test_lines_can_come_while_they_are_read(self) -> None:
        log = NativeLog()
        log.write(INFO, "first\nsecond\n")
        for line in log.lines:
            log.write(INFO, f"{line} again\n")
        assert log.lines == ["first", "second", "first again", "second again"]

    def test_lines_are_bounded(self) -> None:
        log = NativeLog()
        for n in range(10_000):
            log.write(DEBUG, f"{n}\n")
        assert len(log.lines) < 10_000
        assert log.lines[-1] == "9999"


def test_the_library_tells_what_it_is() -> None:
    assert Path(library_path()).is_file()
    assert library_version()
    cpu = [device for device in devices() if device.kind == "cpu"]
    assert len(cpu) == 1
    assert 0 < cpu[0].free_bytes <= cpu[0].total_bytes


def test_a_function_the_library_lacks_is_an_engine_failure() -> None:
    with pytest.raises(EngineFailure, match="ggml_frobnicate"):
        native_function("ggml_frobnicate", None)
