"""Runs a probe in a child process, so that a crash of the native library is an answer and not an end."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What a probe child did: the stages it finished ("plain", "extra") and its exit status."""

    stages: tuple[str, ...]
    returncode: int
    detail: str = ""


def run_compute_probe() -> ProbeOutcome:
    """Let a child decode a batch with plain, then with repacked weights; see `probe/__main__.py`."""
    import subprocess

    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # else an abort starts a debugger
    # -P: files in the working folder must not stand in for the program's modules
    command = [sys.executable, "-P", "-m", "llmrun.engine.probe", "compute"]
    try:
        child = subprocess.run(command, capture_output=True, env=environment, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        return ProbeOutcome(_stages(error.stdout or b""), 1, f"It did not end within {_TIMEOUT_S} s.")
    last_lines = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return ProbeOutcome(_stages(child.stdout), child.returncode, " ".join(last_lines))


def _stages(output: bytes) -> tuple[str, ...]:
    return tuple(output.decode("ascii", "replace").split())
