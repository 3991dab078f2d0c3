"""Decides whether the library may repack weights for its fastest CPU kernels ("extra buffer types").

Builds made by GCC 12 with AMX enabled crash at the first batch of several tokens: the compiler drops the
stores that set up the tile configuration (ggml-cpu/amx/mmq.cpp). Nothing in the library says so, so on a
CPU with AMX a child process tries it once per library build and CPU, and the verdict is remembered. The
way around is `use_extra_bufts=False`, at the price of the repacked kernels.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from llmrun.engine.probe.child import ending
from llmrun.engine.probe.client import ProbeOutcome, run_compute_probe
from llmrun.engine.threads import read_text
from llmrun.errors import EngineFailure

log = logging.getLogger("llmrun.engine")

_AMX_FLAGS = {"amx_tile", "amx_int8", "amx_bf16"}
_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGILL, signal.SIGBUS}


RunProbe = Callable[[], ProbeOutcome]


def extra_bufts_are_safe(library_path: str) -> bool:
    """True unless repacking is known to crash with this library on this CPU.

    Raises:
        EngineFailure: the library dies even without repacking.
    """
    cpu = cpu_flags(read_text("/proc/cpuinfo") or "")
    if not cpu & _AMX_FLAGS:
        return True
    from llmrun.config.dirs import user_cache_dir

    return decide(library_path, cpu, user_cache_dir(os.environ) / "probe", run_compute_probe)


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """CPU features listed in the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def decide(library_path: str, cpu: frozenset[str], folder: Path, run: RunProbe) -> bool:
    """The remembered verdict for this library file and CPU, or that of `run`, then remembered."""
    path = folder / f"{_key(library_path, cpu)}.json"
    remembered = _read_verdict(path)
    if remembered is not None:
        return remembered
    verdict = judge(run())
    _write_verdict(path, verdict)
    return verdict


def judge(outcome: ProbeOutcome) -> bool:
    """Turn what the probe did into "repacking is safe".

    Raises:
        EngineFailure: the probe failed in another way than by a crash of the repacked kernels.
    """
    if outcome.stages == ("plain", "extra") and outcome.returncode == 0:
        return True
    how = ending(outcome.returncode)
    if outcome.stages == ("plain",) and -outcome.returncode in _CRASH_SIGNALS:
        log.warning("the engine crashes with repacked weights on this CPU: it %s; they are switched off", how)
        return False
    where = "before computing anything" if not outcome.stages else f"after the stage {outcome.stages[-1]!r}"
    raise EngineFailure(
        f"the engine's library fails its self-check: it {how} {where}. {outcome.detail}".strip(),
        "rebuild the engine with `make clean chat`",
    )


def _key(library_path: str, cpu: frozenset[str]) -> str:
    """Name of the build and the CPU. The kernels in question are in a ggml library beside libllama."""
    folder = Path(library_path).parent
    libraries = sorted({Path(library_path), *folder.glob("*ggml*")})
    builds = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in libraries]
    identity = [builds, sorted(cpu)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _read_verdict(path: Path) -> bool | None:
    try:
        verdict = json.loads(path.read_text(encoding="utf-8"))["extra_bufts_safe"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return verdict if isinstance(verdict, bool) else None


def _write_verdict(path: Path, verdict: bool) -> None:
    """Remember a verdict; a cache that cannot be written costs the next start a probe, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"extra_bufts_safe": verdict}), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.info("the probe's verdict could not be kept: %s", error)
