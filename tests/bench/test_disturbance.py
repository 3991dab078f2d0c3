"""Whether a machine was quiet: counters between two instants, and what is enough to mark a figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.bench.disturbance import Disturbance, Usage, disturbance


def between(**after: float) -> Disturbance:
    """Two seconds on four CPUs during which the counters grew to `after`."""
    start = {"all_s": 0.0, "own_s": 0.0, "stolen_s": 0.0, "waiting_s": 0.0, "throttled": 0}
    before = Usage(at_s=10.0, cpus=4, **start)  # type: ignore[arg-type]
    return disturbance(before, Usage(at_s=12.0, cpus=4, **(start | after)))  # type: ignore[arg-type]


def test_what_others_used_is_all_less_our_own() -> None:
    found = between(all_s=5.02, own_s=4.0)
    assert found.others_cores == pytest.approx(0.5)
    assert found.flags == ("busy",)


def test_a_tick_of_the_clock_is_no_neighbour() -> None:
    found = disturbance(Usage(0.0, 2, 0.0), Usage(0.05, 2, 0.02, stolen_s=0.01))
    assert (found.others_cores, found.steal_share, found.flags) == (0, 0, ())


def test_a_quiet_machine_has_no_flags() -> None:
    assert between(all_s=4.1, own_s=4.0, waiting_s=0.01).flags == ()


def test_stolen_time_counts_as_busy_and_by_itself() -> None:
    found = between(all_s=0.42, stolen_s=0.42)
    assert found.steal_share == pytest.approx(0.05)
    assert found.flags == ("busy", "steal")


def test_waiting_for_a_cpu_and_throttling() -> None:
    found = between(waiting_s=1.0, throttled=3)
    assert found.run_queue_share == 0.5
    assert found.flags == ("run_queue", "throttled")


def test_what_the_system_does_not_tell_is_unknown() -> None:
    found = disturbance(Usage(1.0, 4), Usage(2.0, 4))
    assert found == Disturbance()
    assert found.flags == ()


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100))
def test_shares_stay_within_their_bounds(all_s: float, own_s: float, waiting_s: float, took_s: float) -> None:
    found = disturbance(Usage(0.0, 2, 0.0, waiting_s=0.0), Usage(took_s, 2, all_s, own_s, 0.0, waiting_s))
    assert found.others_cores is None or found.others_cores >= 0
    assert found.run_queue_share is None or 0 <= found.run_queue_share <= 1
