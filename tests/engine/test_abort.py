"""The library's last words: an error with its exit code instead of an abort trace."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from llmrun.engine.abort import abort_error, without_path
from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError

from tests.support.rpc import rpc_server
from tests.support.waiting import TIMEOUT_S

_GIVE_UP = """
import os, sys, threading
from llmrun.commands.process import run_guarded
from llmrun.engine.bindings import library
def body():
    give_up = lambda: library()._lib.ggml_abort(b"/build/of/somebody/ggml.c", 7, b"%s", sys.argv[1].encode())
    thread = threading.Thread(target=give_up)
    print("partial answer", end="")
    thread.start()
    thread.join()
body() if sys.argv[2:] == ["bare"] else run_guarded(body, sys.argv[2:])
"""


def give_up(message: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _GIVE_UP, message, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def test_last_words_end_the_program_in_an_orderly_way() -> None:
    ended = give_up("GGML_ASSERT(x) failed")
    assert ended.returncode == EngineFailure.exit_code
    assert ended.stdout == "partial answer"
    assert ended.stderr.startswith("error: ")
    assert "ggml.c:7: GGML_ASSERT(x) failed" in ended.stderr
    assert "/build" not in ended.stderr


def test_scripts_get_the_document() -> None:
    ended = give_up("GGML_ASSERT(ctx->mem_buffer != NULL) failed", "--json")
    assert ended.returncode == DoesNotFit.exit_code
    assert '"code": "does_not_fit"' in ended.stdout


def test_without_the_program_around_it_the_library_aborts() -> None:
    """As in the engine's child, whose parent reads the message."""
    ended = give_up("boom", "bare")
    assert ended.returncode == -signal.SIGABRT
    assert ended.stderr == "/build/of/somebody/ggml.c:7: boom\n"


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        ("/a b/ggml-rpc.cpp:566: Remote RPC server crashed", EngineFailure, "ggml-rpc.cpp:566: Remote"),
        ("C:\\src\\ggml.c:1: GGML_ASSERT(ctx->mem_buffer != NULL) failed", DoesNotFit, "ggml.c:1: GGML"),
        ("fatal error", EngineFailure, "fatal error"),
        ("", EngineFailure, ""),
    ],
)
def test_what_the_words_mean(message: str, kind: type[LlmrunError], said: str) -> None:
    error = abort_error(message)
    assert type(error) is kind
    assert f"({said}" in error.message
    assert without_path(message).startswith(said)


def test_a_gpu_tells_the_cause_before() -> None:
    log = [
        "CUDA error: an older one",
        "CUDA error: out of memory",
        "  current device: 0, in function alloc at /build/ggml-cuda.cu:583",
        "  cuMemCreate(&handle, reserve_size, &prop, 0)",
    ]
    error = abort_error("/build/ggml-cuda.cu:109: CUDA error", log)
    assert isinstance(error, DoesNotFit)
    assert "(ggml-cuda.cu:109: CUDA error: out of memory)" in error.message
    lost = abort_error("ggml-cuda.cu:109: CUDA error", ["CUDA error: the launch failed", *log[2:]])
    assert isinstance(lost, EngineFailure)
    assert "the launch failed" in lost.message
    assert "CUDA" not in abort_error("a.c:1: GGML_ASSERT(x) failed", log).message


def test_a_server_that_goes_away_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"LLMRUN_{kind}_DIR", str(tmp_path))
    with ExitStack() as servers:
        server = servers.enter_context(rpc_server())
        command = [sys.executable, "-m", "llmrun", "run", "smollm2-135m", "Tell a long story.", "-n", "5000"]
        command += ["-c", "8192", "--ignore-eos", "--stream", "json", "--rpc", server]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            lines = iter(program.stdout)
            next(line for line in lines if '"event": "token"' in line)
            servers.close()
            last = list(lines)[-1]
        assert program.returncode == EngineFailure.exit_code
        assert '"event": "error"' in last
        assert "RPC server" in last
