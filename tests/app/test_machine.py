"""The counters of the system: their texts, and one real look."""

from __future__ import annotations

import pytest

from llmrun.app.bench.machine import Watch, throttle_events, usage_now, waiting_seconds

from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("some avg10=5.38 avg60=4.12 avg300=2.17 total=3104087045\nfull avg10=0 total=0\n", 3104.087045),
        ("full avg10=0.00 total=12\n", None),
        ("some total=x", None),
        ("", None),
        (None, None),
    ],
)
def test_pressure(text: str | None, expected: float | None) -> None:
    assert waiting_seconds(text) == expected


def test_throttling_of_both_versions_of_control_groups_and_of_the_cpus() -> None:
    files = {
        "/proc/self/cgroup": "3:cpu,cpuacct:/a\n0::/b\n4:memory:/c\nrubbish",
        "/sys/fs/cgroup/cpu/a/cpu.stat": "nr_periods 9\nnr_throttled 2\n",
        "/sys/fs/cgroup/b/cpu.stat": "usage_usec 5\nnr_throttled 3\n",
        "/sys/fs/cgroup/c/cpu.stat": "nr_throttled 100\n",
        "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7\n",
    }
    assert throttle_events(files.get) == 12
    assert throttle_events(lambda _path: None) == 0


def test_the_real_counters_count_our_own_work() -> None:
    before, watch = usage_now(), Watch()
    wait_until(lambda: sum(range(1 << 18)) > 0 and usage_now().own_s > before.own_s)
    found, after = watch.lap(), usage_now()
    assert after.at_s > before.at_s
    assert found.others_cores is None or found.others_cores >= 0
