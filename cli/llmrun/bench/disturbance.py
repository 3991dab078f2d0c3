"""What else went on while something was measured, and whether it can have changed the figure.

Processor time that all programs used, time stolen by the hypervisor included, less what this process and its
children used, is what others took: the load average would lag and count the measurement itself. The kernel's
pressure figure is the share of time in which some task was ready to run and found no CPU
(Documentation/accounting/psi.rst): the run queue, as far as anybody waited in it. Throttling shows in
counters that only grow: the control group's quota and the CPU's own thermal limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Flag = Literal["busy", "steal", "run_queue", "throttled", "spread"]

CLOCK_TICK_S = 0.01
"""The step in which the kernel counts processor time (USER_HZ is 100)."""
BUSY_CORES = 0.1
"""Others' use, in cores, from which a figure is marked."""
STEAL_SHARE = 0.01
RUN_QUEUE_SHARE = 0.1
SPREAD_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one instant, in seconds; None where the system keeps none.

    `all_s`: processor time used by anybody, `stolen_s` included; `own_s`: by this process and its ended
    children; `waiting_s`: time in which some task waited for a CPU; `throttled`: events of throttling.
    """

    at_s: float
    cpus: int
    all_s: float | None = None
    own_s: float = 0.0
    stolen_s: float = 0.0
    waiting_s: float | None = None
    throttled: int = 0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Between two instants: cores that others used, share of CPU time stolen, share of time in which a task
    waited for a CPU, and whether the processor was throttled. None: the system does not tell."""

    others_cores: float | None = None
    steal_share: float | None = None
    run_queue_share: float | None = None
    throttled: bool = False

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Names of what was enough to mark a figure."""
        found: list[Flag] = []
        if (self.others_cores or 0.0) > BUSY_CORES:
            found.append("busy")
        if (self.steal_share or 0.0) > STEAL_SHARE:
            found.append("steal")
        if (self.run_queue_share or 0.0) > RUN_QUEUE_SHARE:
            found.append("run_queue")
        if self.throttled:
            found.append("throttled")
        return tuple(found)


def disturbance(before: Usage, after: Usage) -> Disturbance:
    """What happened between two instants, of which `after` is the later."""
    took_s = after.at_s - before.at_s
    if took_s <= 0:
        return Disturbance(throttled=after.throttled > before.throttled)
    others = steal = waiting = None
    if before.all_s is not None and after.all_s is not None:
        others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
        others = _rate(others_s, took_s)
        steal = _rate(after.stolen_s - before.stolen_s, took_s) / after.cpus
    if before.waiting_s is not None and after.waiting_s is not None:
        waiting = min(1.0, max(0.0, (after.waiting_s - before.waiting_s) / took_s))
    return Disturbance(others, steal, waiting, after.throttled > before.throttled)


def _rate(used_s: float, took_s: float) -> float:
    """Cores; what two ticks may be wrong by is not held against anybody."""
    return max(0.0, used_s - 2 * CLOCK_TICK_S) / took_s
