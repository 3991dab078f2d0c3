"""How many threads to compute with: physical cores that this process may really use.

Decode is bound by memory bandwidth and gains nothing from a second hardware thread on a core, and a thread
that waits for a partner without a CPU slows every step; so does one on an efficiency core, as all wait for
the last (llama.cpp's tools leave those out, too: common_cpu_get_num_math). So: one thread per physical core,
of the performance cores where there are two kinds, within the CPU affinity and the cgroup's CPU quota (v2
`cpu.max`, v1 `cpu.cfs_quota_us`), at least one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ReadText = Callable[[str], str | None]


def read_text(path: str) -> str | None:
    """Content of a small system file, None when it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def usable_threads() -> int:
    """Threads to use on this machine."""
    if hasattr(os, "sched_getaffinity"):
        allowed = frozenset(os.sched_getaffinity(0))
    else:
        allowed = frozenset(range(os.cpu_count() or 1))
    return count_threads(allowed, read_text)


def count_threads(allowed: frozenset[int], read: ReadText) -> int:
    """Threads for the logical CPUs `allowed`, reading /sys and /proc through `read`."""
    cores = physical_cores(fast_cpus(allowed, read), read)
    quota = cpu_quota(read)
    return max(1, cores if quota is None else min(cores, int(quota)))


def fast_cpus(allowed: frozenset[int], read: ReadText) -> frozenset[int]:
    """Those of `allowed` on performance cores; all where there is one kind of core, or none of these.

    Linux lists them beside the counters of Intel's two kinds (tools/perf/Documentation/intel-hybrid.txt).
    """
    return allowed & frozenset(listed_cpus(read("/sys/devices/cpu_core/cpus"))) or allowed


def listed_cpus(text: str | None) -> Iterator[int]:
    """Numbers in a list of CPUs such as `0-3,8`; what is written otherwise is left out."""
    for part in (text or "").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            yield from range(int(first), int(last or first) + 1)


def physical_cores(allowed: frozenset[int], read: ReadText) -> int:
    """Distinct physical cores among the logical CPUs `allowed`."""
    siblings = {
        read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed
    }
    if len(siblings) == len(allowed) and read("/sys/devices/system/cpu/online") is None:
        import psutil  # systems without /sys: macOS, Windows

        return min(len(allowed), psutil.cpu_count(logical=False) or len(allowed))
    return len(siblings)


def cpu_quota(read: ReadText) -> float | None:
    """CPUs' worth of time the process's cgroups allow, None without a limit.

    Every level from the process's own group up to the root may set a limit; the smallest counts. What is
    not written as a limit is none.
    """
    limits = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "" and path:
            limits += [_quota_v2(read, folder) for folder in _ancestors("/sys/fs/cgroup", path)]
        elif "cpu" in controllers.split(","):
            limits += [_quota_v1(read, folder) for folder in _ancestors("/sys/fs/cgroup/cpu", path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _ancestors(root: str, path: str) -> list[str]:
    """Folders of a cgroup and all above it; inside a container only the root may be visible."""
    parts = [part for part in path.split("/") if part]
    return [root + "".join(f"/{part}" for part in parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(read: ReadText, folder: str) -> float | None:
    return _ratio((read(f"{folder}/cpu.max") or "").split())


def _quota_v1(read: ReadText, folder: str) -> float | None:
    return _ratio([(read(f"{folder}/cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")])


def _ratio(words: Sequence[str]) -> float | None:
    """Quota over period; "max" and -1 stand for no limit."""
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])
