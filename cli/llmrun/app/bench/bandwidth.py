"""The machine's read bandwidth: measured once for each number of threads, then kept in the cache folder.

A figure taken on a busy machine is too low. It is used, marked, until a quieter moment gives another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from llmrun.app.bench.machine import Watch
from llmrun.app.memory.host_memory import host_memory
from llmrun.bench.disturbance import BUSY_CORES
from llmrun.config.dirs import user_cache_dir
from llmrun.engine.bandwidth import measure_read_bandwidth
from llmrun.engine.threads import read_text

log = logging.getLogger("llmrun.bandwidth")

SCHEMA = "llmrun.bandwidth/1"


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Bytes a second that `n_threads` threads read from main memory, and when that was measured (UTC).

    `others_cores`: what other programs used meanwhile; None where the system does not tell.
    """

    bytes_per_s: float
    n_threads: int
    measured_at: str
    others_cores: float | None

    @property
    def busy(self) -> bool:
        """True where other programs may have made the figure too low."""
        return (self.others_cores or 0.0) > BUSY_CORES


def read_bandwidth(
    n_threads: int,
    *,
    folder: Path | None = None,
    measure: Callable[[int, int], float] = measure_read_bandwidth,
) -> ReadBandwidth:
    """The remembered figure of this machine, or a new one.

    Args:
        n_threads: threads that read, those that decode.
        folder: where it is remembered; default: in the cache folder.
        measure: bytes a second, from the threads and the bytes that are free.

    Raises:
        EngineFailure: it cannot be measured.
    """
    path = (folder or user_cache_dir(os.environ) / "probe") / f"bandwidth-{_machine()}-{n_threads}.json"
    known = _read(path)
    if known is not None and not known.busy:
        return known
    watch = Watch()
    rate = measure(n_threads, host_memory().free_bytes)
    others = watch.lap().others_cores
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    found = ReadBandwidth(rate, n_threads, at, None if others is None else round(others, 3))
    if known is not None and found.busy and known.bytes_per_s > found.bytes_per_s:
        return known  # of two figures that are both too low, the larger is nearer
    _write(path, found)
    return found


def _machine() -> str:
    """A name for this computer: the cache folder may be shared by several."""
    cpu = next((x for x in (read_text("/proc/cpuinfo") or "").splitlines() if x.startswith("model name")), "")
    identity = [cpu, platform.node(), platform.machine(), os.cpu_count()]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _read(path: Path) -> ReadBandwidth | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("schema") != SCHEMA:
            return None
        found = ReadBandwidth(**record)
        usable = found.bytes_per_s > 0 and isinstance(found.measured_at, str)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if usable else None


def _write(path: Path, found: ReadBandwidth) -> None:
    """Remember a figure; a cache that cannot be written costs the next measurement, no more."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"schema": SCHEMA, **asdict(found)}), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.info("the bandwidth could not be kept: %s", error)
