"""Thread counts on machines described by their /sys, /proc and cgroup files."""

from __future__ import annotations

import threading

import pytest

from llmrun.engine import threadpool
from llmrun.engine.threads import count_threads, cpu_quota, read_text, usable_threads
from llmrun.errors import EngineFailure

Files = dict[str, str]
CPU = "/sys/devices/system/cpu"
CGROUP = "/sys/fs/cgroup"


def machine(siblings: dict[int, str]) -> Files:
    """The topology files of a machine; each CPU with the list of threads on its core."""
    files = {f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{text}\n" for n, text in siblings.items()}
    return files | {f"{CPU}/online": f"0-{max(siblings)}\n"}


def smt(cores: int) -> Files:
    """Two threads a core, the second of core n being CPU n + cores."""
    return machine({n: f"{n % cores},{n % cores + cores}" for n in range(2 * cores)})


def plain(cores: int) -> Files:
    return machine({n: str(n) for n in range(cores)})


HYBRID = machine({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5"}) | {
    "/sys/devices/cpu_core/cpus": "0-3\n"
}


def count(files: Files, allowed: range | set[int]) -> int:
    return count_threads(frozenset(allowed), files.get)


@pytest.mark.parametrize(
    ("files", "allowed", "threads"),
    [
        pytest.param(plain(4), range(4), 4, id="four cores"),
        pytest.param(smt(8), range(16), 8, id="eight cores with two threads each"),
        pytest.param(smt(8), {0, 8}, 1, id="both threads of one core"),
        pytest.param(smt(8), {0, 1, 2}, 3, id="three cores by affinity"),
        pytest.param(smt(8), {5}, 1, id="one CPU"),
        pytest.param(plain(20), range(20), 20, id="kinds of cores that the system does not tell"),
        pytest.param(HYBRID, range(6), 2, id="performance and efficiency cores"),
        pytest.param(HYBRID, {1, 4, 5}, 1, id="performance cores by affinity"),
        pytest.param(HYBRID, {4, 5}, 2, id="efficiency cores only, by affinity"),
        pytest.param({f"{CPU}/online": "0-3"}, range(4), 4, id="no topology"),
        pytest.param(plain(4), set(), 1, id="no CPU at all"),
    ],
)
def test_one_thread_for_each_core_allowed(files: Files, allowed: range | set[int], threads: int) -> None:
    assert count(files, allowed) == threads


def test_without_sys_the_count_comes_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical: None if logical else 4)
    assert count({}, range(8)) == 4
    assert count({}, {0, 1}) == 2
    monkeypatch.setattr("psutil.cpu_count", lambda logical: None)
    assert count({}, range(8)) == 8


V2 = {"/proc/self/cgroup": "0::/user.slice/app\n"}
V1 = {"/proc/self/cgroup": "12:pids:/app\n5:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n"}


def v1(folder: str, quota: str, period: str = "100000") -> Files:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="no cgroups"),
        pytest.param(V2, None, id="v2, nothing readable"),
        pytest.param(V2 | {f"{CGROUP}/user.slice/app/cpu.max": "max 100000\n"}, None, id="v2, no limit"),
        pytest.param(V2 | {f"{CGROUP}/user.slice/app/cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param(V2 | {f"{CGROUP}/user.slice/cpu.max": "200000 100000\n"}, 2.0, id="v2, a parent's"),
        pytest.param(V2 | {f"{CGROUP}/cpu.max": "50000 100000\n"}, 0.5, id="v2, seen from inside"),
        pytest.param(
            V2
            | {
                f"{CGROUP}/user.slice/app/cpu.max": "400000 100000\n",
                f"{CGROUP}/user.slice/cpu.max": "300000 100000\n",
                f"{CGROUP}/cpu.max": "max 100000\n",
            },
            3.0,
            id="v2, the smallest of several",
        ),
        pytest.param(V1, None, id="v1, nothing readable"),
        pytest.param(V1 | v1(f"{CGROUP}/cpu/docker/x", "-1"), None, id="v1, no limit"),
        pytest.param(V1 | v1(f"{CGROUP}/cpu/docker/x", "250000"), 2.5, id="v1"),
        pytest.param(V1 | v1(f"{CGROUP}/cpu", "100000", "50000"), 2.0, id="v1, seen from inside"),
        pytest.param(V1 | V2 | v1(f"{CGROUP}/cpu", "100000"), None, id="v2 text, v1 files"),
        pytest.param({"/proc/self/cgroup": "garbage\n\n0::/\n"}, None, id="lines that are no groups"),
        pytest.param(V2 | {f"{CGROUP}/cpu.max": "x y\n"}, None, id="v2, no numbers"),
        pytest.param(V2 | {f"{CGROUP}/cpu.max": "1000 0\n"}, None, id="v2, a period of nothing"),
        pytest.param(V1 | v1(f"{CGROUP}/cpu", "x"), None, id="v1, no numbers"),
        pytest.param(V1 | v1(f"{CGROUP}/cpu", "1000", "0"), None, id="v1, a period of nothing"),
    ],
)
def test_quota(files: Files, quota: float | None) -> None:
    assert cpu_quota(files.get) == quota


@pytest.mark.parametrize(
    ("quota", "threads"), [("50000", 1), ("150000", 1), ("200000", 2), ("399999", 3), ("9900000", 8)]
)
def test_a_quota_counts_in_whole_cpus_and_at_least_one(quota: str, threads: int) -> None:
    files = smt(8) | V2 | {f"{CGROUP}/cpu.max": f"{quota} 100000\n"}
    assert count(files, range(16)) == threads


def test_files_that_cannot_be_read(tmp_path: object) -> None:
    assert read_text(f"{tmp_path}/nothing") is None
    assert read_text(f"{tmp_path}") is None


def test_this_machine_has_a_thread() -> None:
    assert usable_threads() >= 1


@pytest.mark.parametrize(("granted", "wanted"), [(0, 1), (2, 5)])
def test_threads_that_the_system_does_not_grant(
    monkeypatch: pytest.MonkeyPatch, granted: int, wanted: int
) -> None:
    """The library would end the process."""
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(begun) == granted:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(EngineFailure, match=f"{granted} more threads, not {wanted}"):
        threadpool._check_threads(wanted)
    assert not any(thread.is_alive() for thread in begun)
