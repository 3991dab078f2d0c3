"""Reads the counters that tell how quiet this machine is; what they mean is `bench/disturbance.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from llmrun.bench.disturbance import Disturbance, Usage, disturbance
from llmrun.engine.threads import ReadText, read_text

_MICROSECONDS = 1e6


class Watch:
    """What disturbed this machine since the last look at it."""

    def __init__(self, now: Callable[[], Usage] | None = None) -> None:
        self._now = now or usage_now
        self._last = self._now()

    def lap(self) -> Disturbance:
        """Since the last call, or since the watch was made."""
        before, self._last = self._last, self._now()
        return disturbance(before, self._last)


def usage_now() -> Usage:
    """The counters as of now."""
    import psutil

    times = psutil.cpu_times()
    used = ("user", "nice", "system", "irq", "softirq", "steal")  # guests' time is part of user's
    return Usage(
        at_s=time.monotonic(),
        cpus=os.cpu_count() or 1,
        all_s=sum(getattr(times, name, 0.0) for name in used),
        own_s=sum(os.times()[:4]),
        stolen_s=getattr(times, "steal", 0.0),
        waiting_s=waiting_seconds(read_text("/proc/pressure/cpu")),
        throttled=throttle_events(read_text),
    )


def waiting_seconds(pressure: str | None) -> float | None:
    """Time in which some task waited for a CPU, from the text of /proc/pressure/cpu."""
    for line in (pressure or "").splitlines():
        words = line.split()
        total = words[-1].partition("total=")[2] if words and words[0] == "some" else ""
        if total.isdecimal():
            return int(total) / _MICROSECONDS
    return None


def throttle_events(read: ReadText) -> int:
    """How often this process's control groups or the CPUs' thermal limits have held it back so far."""
    return sum(_group_throttles(read)) + sum(_thermal_throttles(read))


def _group_throttles(read: ReadText) -> Iterator[int]:
    for line in (read("/proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "" or "cpu" in controllers.split(","):
            root = "/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup"
            for folder in dict.fromkeys((f"{root}{path.rstrip('/')}", root)):
                yield _count(read(f"{folder}/cpu.stat"), "nr_throttled")


def _count(text: str | None, name: str) -> int:
    words = (line.split() for line in (text or "").splitlines())
    return next((int(w[1]) for w in words if len(w) == 2 and w[0] == name and w[1].isdecimal()), 0)


def _thermal_throttles(read: ReadText) -> Iterator[int]:
    for cpu in range(os.cpu_count() or 1):
        events = read(f"/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count")
        if events is None:
            return
        yield int(events) if events.strip().isdecimal() else 0
