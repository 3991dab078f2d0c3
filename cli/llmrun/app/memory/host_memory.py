"""How much main memory this process may still take.

The system's own figure counts pages that can be had without swapping. Containers bound a process further: a
control group has a limit and a usage at each level of its path (version 2: memory.max and memory.current,
version 1: memory.limit_in_bytes and memory.usage_in_bytes), where cached file pages that were not used for
a while count as usage but give way. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst
of the Linux kernel, getrlimit(2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmrun.units import KIB, MIB

Read = Callable[[str], str | None]
"""The text of a file; None where it cannot be read."""

_ROOT = "/sys/fs/cgroup"
_ENGINE_SPACE_BYTES = 192 * MIB  # its libraries, stacks and arenas: 146 MiB measured with two threads
_M_ARENA_MAX = -8  # malloc.h of glibc


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Main memory in bytes: what there is and what is left, within every bound.

    `space_bytes`: address space that is left, files that are mapped included; None where it has no limit.
    """

    total_bytes: int
    free_bytes: int
    space_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of one version's files."""

    folder: str
    limit: str
    usage: str
    inactive: str


_V1 = _Version(f"{_ROOT}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version(_ROOT, "memory.max", "memory.current", "inactive_file")


def bounded(system: HostMemory, read: Read, address_space_bytes: int | None) -> HostMemory:
    """`system` within the control groups that `read` tells of and a limit on the address space (None: none).

    What the process has mapped already counts against the address space, and so does what the engine will
    map beside its buffers.
    """
    total, free = system.total_bytes, system.free_bytes
    for limit, left in _group_bounds(read):
        total, free = min(total, limit), min(free, left)
    if address_space_bytes is None:
        return HostMemory(total, max(0, free))
    space = max(0, address_space_bytes - _mapped_bytes(read) - _ENGINE_SPACE_BYTES)
    return HostMemory(min(total, address_space_bytes), max(0, min(free, space)), space)


def _group_bounds(read: Read) -> Iterator[tuple[int, int]]:
    """Limit and what is left of it, for each level of this process's groups that has a limit."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        version = _V1 if controllers else _V2
        steps = [step for step in path.split("/") if step]
        for depth in range(len(steps) + 1):
            bound = _bound("/".join((version.folder, *steps[:depth])), version, read)
            if bound is not None:
                yield bound


def _bound(folder: str, version: _Version, read: Read) -> tuple[int, int] | None:
    limit = _number(read(f"{folder}/{version.limit}"))
    if limit is None:
        return None
    usage = _number(read(f"{folder}/{version.usage}")) or 0
    stat = (line.split() for line in (read(f"{folder}/memory.stat") or "").splitlines())
    inactive = next(
        (_number(words[1]) or 0 for words in stat if len(words) == 2 and words[0] == version.inactive), 0
    )
    return limit, limit - max(0, usage - inactive)


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _mapped_bytes(read: Read) -> int:
    """Size of this process's address space (proc_pid_status(5))."""
    lines = (line.split() for line in (read("/proc/self/status") or "").splitlines())
    return next(
        (KIB * (_number(words[1]) or 0) for words in lines if len(words) == 3 and words[0] == "VmSize:"), 0
    )


def host_memory() -> HostMemory:
    """Main memory of this machine that this process may take."""
    import psutil

    system = psutil.virtual_memory()
    return bounded(HostMemory(system.total, system.available), _read, _address_space())


def share_one_heap() -> None:
    """Let all threads allocate from one heap where the address space is limited; before any of them begins.

    glibc reserves 64 MiB of it for each thread, or takes those of one that has ended by then: what is said
    to fit would fit by chance. Source: mallopt(3), M_ARENA_MAX. Other libraries are left as they are.
    """
    if _address_space() is None:
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("ascii", "replace")
    except OSError:
        return None


def _address_space() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
