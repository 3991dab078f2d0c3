"""Runs a probe in a child process, so that a crash of the native library is an answer and not an end."""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.engine.probe.child import command, environment

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

    try:
        child = subprocess.run(
            command("compute"), capture_output=True, env=environment(), timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return ProbeOutcome(_stages(error.stdout or b""), 1, f"It did not end within {_TIMEOUT_S} s.")
    last_lines = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return ProbeOutcome(_stages(child.stdout), child.returncode, " ".join(last_lines))


def _stages(output: bytes) -> tuple[str, ...]:
    return tuple(output.decode("ascii", "replace").split())
