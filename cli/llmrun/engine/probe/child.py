"""Asks the engine in a child process, so that a crash of the native library is an error and not an end.

A question is one JSON document on the child's stdin, the answer one on its stdout: `{"ok": ...}` or
`{"error": {"code", "message", "hint"}}` for a failure that has a class in `errors`. The child has bounds on
time and memory; whatever else ends it becomes an `EngineFailure` that says how.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from llmrun.engine.abort import without_path
from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError
from llmrun.units import GIB

_GRACE_S = 5  # a child that its parent does not end in time ends itself that much later
_NO_MEMORY = (b"mem_buffer != NULL", b"bad_alloc", b"MemoryError")

DRY_MEMORY_BYTES = 8 * GIB
"""What a child may allocate that only computes sizes; it needs a small share of this.

Children that only look at devices have no bound: what a GPU's driver takes must not hide the GPU.
"""


def ask(entry: str, question: object, *, timeout_s: int, memory_bytes: int | None = None) -> Any:
    """The answer of `python -m llmrun.engine.probe ENTRY`.

    Raises:
        LlmrunError: the class and text the child gave.
        DoesNotFit: the child got no memory, or the system killed it, as it does when memory runs out.
        EngineFailure: the child crashed, ran out of time, or answered nothing that can be read.
    """
    import subprocess

    bounds = {"alarm_s": timeout_s + _GRACE_S, "memory_bytes": memory_bytes, "parent": os.getpid()}
    try:
        child = subprocess.run(
            command(entry),
            input=json.dumps({"bounds": bounds, "question": question}).encode(),
            capture_output=True,
            env=environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineFailure(f"the engine did not answer ({entry}) within {timeout_s} s") from None
    return _read(entry, child.returncode, child.stdout, child.stderr)


def command(entry: str) -> list[str]:
    """What starts a child. -P: files in the working folder must not stand in for the program's modules."""
    return [sys.executable, "-P", "-m", "llmrun.engine.probe", entry]


def environment() -> dict[str, str]:
    """A child's environment, in which an abort of the library does not start a debugger first."""
    return {**os.environ, "GGML_NO_BACKTRACE": "1"}


def _read(entry: str, status: int, out: bytes, err: bytes) -> Any:
    try:
        answer = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        hint = "use a smaller quantization, a smaller -c, or a smaller --kv-type with -fa on"
        if status == -getattr(signal, "SIGKILL", 9):
            raise DoesNotFit(
                f"the system killed the engine ({entry}), most likely for lack of memory", hint
            ) from None
        if any(sign in err for sign in _NO_MEMORY):
            raise DoesNotFit(f"the engine ({entry}) got no memory, and {ending(status)}", hint) from None
        last = without_path(b" ".join(err.strip().splitlines()[-1:]).decode("utf-8", "replace"))
        raise EngineFailure(
            f"the engine {ending(status)} and gave no answer ({entry}). {last}".strip()
        ) from None
    if "error" in answer:
        said = answer["error"]
        raise _error_class(said["code"])(said["message"], said["hint"])
    return answer["ok"]


def ending(status: int) -> str:
    """How a process ended, by its exit status as `subprocess` tells it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"died by {signal.Signals(-status).name}"
    except ValueError:
        return f"died by signal {-status}"


def _error_class(code: str) -> type[LlmrunError]:
    return next((known for known in LlmrunError.__subclasses__() if known.code == code), EngineFailure)
