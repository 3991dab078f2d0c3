"""Main memory within the bounds of control groups and of the address space."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping

import pytest

from llmrun.app.memory.host_memory import HostMemory, bounded, host_memory
from llmrun.units import GIB, MIB

SYSTEM = HostMemory(64 * GIB, 40 * GIB)
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def within(files: Mapping[str, object], address_space_bytes: int | None = None) -> HostMemory:
    texts = {path: f"{content}\n" for path, content in files.items()}
    return bounded(SYSTEM, texts.get, address_space_bytes)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"/proc/self/cgroup": "0::/"},
        {"/proc/self/cgroup": "0::/a", f"{V2}/a/memory.max": "max", f"{V2}/a/memory.current": 5 * GIB},
        {"/proc/self/cgroup": "4:memory:/", f"{V1}/memory.limit_in_bytes": 9223372036854771712},
        {"/proc/self/cgroup": "garbage", f"{V2}/memory.max": "-1"},
        {"/proc/self/cgroup": "3:cpuset:/", f"{V2}/memory.max": 1, f"{V1}/memory.limit_in_bytes": 1},
    ],
)
def test_no_bound(files: dict[str, object]) -> None:
    assert within(files) == SYSTEM


def test_a_group_of_version_2_with_cached_pages_that_give_way() -> None:
    files = {
        "/proc/self/cgroup": "0::/box/job",
        f"{V2}/box/job/memory.max": 8 * GIB,
        f"{V2}/box/job/memory.current": 3 * GIB,
        f"{V2}/box/job/memory.stat": f"anon 5\ninactive_file {GIB}\ninactive_anon 7",
    }
    assert within(files) == HostMemory(8 * GIB, 6 * GIB)


def test_the_tightest_level_counts() -> None:
    files = {
        "/proc/self/cgroup": "0::/a/b/c",
        f"{V2}/a/memory.max": 4 * GIB,
        f"{V2}/a/memory.current": 3 * GIB,
        f"{V2}/a/b/c/memory.max": 2 * GIB,
        f"{V2}/a/b/c/memory.current": 0,
    }
    assert within(files) == HostMemory(2 * GIB, GIB)


@pytest.mark.parametrize("path", ["/", "/docker/0123"])
def test_a_group_of_version_1_in_a_container(path: str) -> None:
    """The path is often that of the host, whose folders a container does not see."""
    files = {
        "/proc/self/cgroup": f"9:name=systemd:/\n5:cpu,memory:{path}\n0::/",
        f"{V1}/memory.limit_in_bytes": 2 * GIB,
        f"{V1}/memory.usage_in_bytes": GIB,
        f"{V1}/memory.stat": f"inactive_file 1\ntotal_inactive_file {512 * MIB}",
    }
    assert within(files) == HostMemory(2 * GIB, GIB + 512 * MIB)


def test_a_group_beyond_its_limit_has_nothing_left() -> None:
    files = {"/proc/self/cgroup": "0::/", f"{V2}/memory.max": GIB, f"{V2}/memory.current": 2 * GIB}
    assert within(files) == HostMemory(GIB, 0)


def test_the_address_space() -> None:
    """The engine's libraries and threads, not loaded yet, take some of it as well."""
    engine_bytes = 4 * GIB - within({}, 4 * GIB).free_bytes
    assert GIB // 16 < engine_bytes < GIB // 4
    status = "Name:\tx\nVmPeak:\t9999999 kB\nVmSize:\t {} kB\nVmRSS:"
    used = {"/proc/self/status": status.format(GIB // 1024)}
    left = 3 * GIB - engine_bytes
    assert within(used, 4 * GIB) == HostMemory(4 * GIB, left, left)
    assert within(used, GIB // 2) == HostMemory(GIB // 2, 0, 0)
    assert within({}, 100 * GIB) == HostMemory(64 * GIB, 40 * GIB, 100 * GIB - engine_bytes)


ALLOCATING_THREADS = """
import resource, sys, threading
from llmrun.app.memory.host_memory import _mapped_bytes, _read, share_one_heap

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
if sys.argv[1] == "shared":
    share_one_heap()
together = threading.Barrier(9)

def work():
    kept = [bytes(20_000) for _ in range(50)]
    together.wait()
    together.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
before = _mapped_bytes(_read)
for thread in threads:
    thread.start()
together.wait()
print(_mapped_bytes(_read) - before)
together.wait()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's allocator")
def test_threads_share_a_heap_where_the_address_space_is_limited() -> None:
    def taken_bytes(how: str) -> int:
        ended = subprocess.run(
            [sys.executable, "-c", ALLOCATING_THREADS, how], capture_output=True, text=True, check=True
        )
        return int(ended.stdout)

    assert taken_bytes("shared") < taken_bytes("apart") - 3 * 64 * MIB


def test_this_machine() -> None:
    found = host_memory()
    assert found.total_bytes >= found.free_bytes > 0
