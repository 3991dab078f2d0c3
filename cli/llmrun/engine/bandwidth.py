"""How many bytes a second this machine reads from main memory, measured in a child process.

The child keeps the buffer, larger than every cache, out of this process's memory figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmrun.engine.probe.child import ask
from llmrun.engine.threads import ReadText, listed_cpus, read_text
from llmrun.units import KIB, MIB

LASTING_S = 0.4
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 256 * MIB, 2048 * MIB
CACHES = 4
"""The buffer is so many times as large as the last-level caches together: at most a quarter is a hit."""
_TIMEOUT_S = 60
_MULTIPLES = {"K": KIB, "M": MIB}


def measure_read_bandwidth(n_threads: int, free_bytes: int) -> float:
    """Bytes a second that `n_threads` read; the buffer takes at most a quarter of `free_bytes`.

    Raises:
        EngineFailure: the child could not measure.
    """
    size_bytes = min(buffer_bytes(read_text), max(MIB, free_bytes // 4))
    rates: list[float] = ask("bandwidth", _question(n_threads, size_bytes), timeout_s=_TIMEOUT_S)
    return max(rates)


def _question(n_threads: int, size_bytes: int) -> dict[str, float]:
    return {"n_threads": n_threads, "size_bytes": size_bytes, "lasting_s": LASTING_S}


def buffer_bytes(read: ReadText) -> int:
    """Size of a buffer that the caches told by /sys, read through `read`, cannot hold."""
    return min(max(CACHES * last_level_cache_bytes(read), MIN_BUFFER_BYTES), MAX_BUFFER_BYTES)


def last_level_cache_bytes(read: ReadText) -> int:
    """All last-level caches together; 0 where the system does not tell."""
    found: dict[str, int] = {}
    for cpu in listed_cpus(read("/sys/devices/system/cpu/online")):
        largest = max(_caches(read, f"/sys/devices/system/cpu/cpu{cpu}"), default=(0, "", 0))
        found[largest[1]] = largest[2]
    return sum(found.values())


def _caches(read: ReadText, folder: str) -> Iterator[tuple[int, str, int]]:
    """(level, the CPUs that share it, bytes) of each cache of a CPU."""
    index = 0
    while (level := read(f"{folder}/cache/index{index}/level")) is not None:
        size = (read(f"{folder}/cache/index{index}/size") or "").strip()
        shared = (read(f"{folder}/cache/index{index}/shared_cpu_list") or "").strip()
        if level.strip().isdecimal() and size[:-1].isdecimal() and size[-1:] in _MULTIPLES:
            yield int(level), shared, int(size[:-1]) * _MULTIPLES[size[-1]]
        index += 1
