"""What fits: the longest context, the most layers on the GPU, a plan of offload.

All searches rest on sizes that only grow with the context and, on the GPUs, with the layers given to them.
The order of a plan: everything on the GPUs; for a mixture of experts the experts of as few layers as
possible on the CPU, since each token uses a few of them only; then fewer layers; the context shrinks last,
and only where it is not fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import CELL_STEP, cache_sizes, layer_state_bytes, padded
from llmrun.memory.placement import gpus_of, host_of
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES, DeviceInfo, MemoryPlan
from llmrun.memory.use import Use, device_use

_UNKNOWN_CTX = 1 << 20

MIN_CTX = 4096
"""A context is not shrunk below this, unless it was shorter to begin with."""

OffloadKind = Literal["cpu", "all", "experts_on_cpu", "layers", "too_large"]


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """A plan with layers, experts and context decided. `ctx_shrunk`: the context is shorter than asked."""

    kind: OffloadKind
    plan: MemoryPlan
    use: Use
    fits: bool
    ctx_shrunk: bool = False


def _largest(low: int, high: int, good: Callable[[int], bool]) -> int | None:
    """The largest value from `low` to `high` that is good, where all below a good one are; None for none."""
    if low > high or not good(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if good(middle):
            low = middle
        else:
            high = middle - 1
    return low


def trained_ctx(facts: MemoryFacts) -> int:
    """The longest context worth asking for: the trained length, a million tokens where it is unknown."""
    return padded(facts.n_ctx_train or _UNKNOWN_CTX)


def largest_ctx(plan: MemoryPlan, good: Callable[[MemoryPlan], bool], *, low: int, high: int) -> int:
    """The longest context in whole steps of 256 from `low` to `high` for which `good` holds; 0 for none."""
    steps = _largest(
        max(1, low // CELL_STEP), high // CELL_STEP, lambda n: good(replace(plan, n_ctx=n * CELL_STEP))
    )
    return 0 if steps is None else steps * CELL_STEP


def max_ctx(facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int) -> int:
    """The longest context that fits with the layers where the plan has them, up to the trained length."""
    return largest_ctx(
        plan,
        lambda p: device_use(facts, p, devices).fits(reserve_bytes),
        low=CELL_STEP,
        high=trained_ctx(facts),
    )


def max_gpu_layers(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int
) -> int:
    """The most layers (the output counts as one) that fit on the GPUs; 0 where there are none."""
    if not gpus_of(devices):
        return 0

    def good(count: int) -> bool:
        return device_use(facts, replace(plan, gpu_layers=count), devices).gpus_fit(reserve_bytes)

    # All may fit where fewer do not: nothing is left on the CPU that a GPU would have to borrow.
    return facts.n_slots if good(facts.n_slots) else _largest(0, facts.n_slots - 1, good) or 0


def beyond(facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int) -> bool:
    """True where all devices together have no room for weights, cache and state, wherever they are put."""
    needed = sum(w.size_bytes for w in facts.weights)
    needed += sum(size.size_bytes for size in cache_sizes(facts, plan))
    needed += sum(layer_state_bytes(layer, plan) for layer in facts.layers)
    used = (host_of(devices), *(gpu for gpu in gpus_of(devices) if gpu.kind != "igpu"))
    return needed > sum(max(0, device.free_bytes - reserve_bytes) for device in used)


class _Planner:
    """One search; keeps what all its steps share."""

    def __init__(self, facts: MemoryFacts, devices: Sequence[DeviceInfo], reserve_bytes: int) -> None:
        self.facts, self.devices, self.reserve_bytes = facts, devices, reserve_bytes
        self.has_gpu = bool(gpus_of(devices))

    def _try(self, kind: OffloadKind, plan: MemoryPlan) -> OffloadPlan:
        use = device_use(self.facts, plan, self.devices)
        return OffloadPlan(kind, plan, use, use.fits(self.reserve_bytes))

    def fits(self, plan: MemoryPlan) -> bool:
        """True where some plan with this context fits."""
        return not beyond(self.facts, plan, self.devices, self.reserve_bytes) and self.at(plan).fits

    def at(self, plan: MemoryPlan) -> OffloadPlan:
        """The best plan with this context."""
        if not self.has_gpu:
            return self._try("cpu", replace(plan, gpu_layers=0))
        everything = self._try("all", replace(plan, gpu_layers=self.facts.n_slots))
        if everything.fits:
            return everything
        if self.facts.is_moe and not plan.cpu_moe and not plan.n_cpu_moe:
            experts = self._experts(everything.plan)
            return experts if experts.fits else self._fewer(replace(plan, cpu_moe=True))
        return self._fewer(plan)

    def _experts(self, plan: MemoryPlan) -> OffloadPlan:
        n_layer = len(self.facts.layers)
        kept = _largest(
            0, n_layer, lambda n: self._try("experts_on_cpu", replace(plan, n_cpu_moe=n_layer - n)).fits
        )
        return self._try("experts_on_cpu", replace(plan, n_cpu_moe=n_layer - (kept or 0)))

    def _fewer(self, plan: MemoryPlan) -> OffloadPlan:
        count = max_gpu_layers(self.facts, plan, self.devices, self.reserve_bytes)
        found = self._try("layers" if count else "cpu", replace(plan, gpu_layers=count))
        if found.fits or not count:
            return found
        return replace(found, kind="too_large")


def plan_offload(
    facts: MemoryFacts,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    *,
    ctx_fixed: bool = True,
) -> OffloadPlan:
    """Decide layers, experts and, unless it is fixed, the context; `gpu_layers` of `plan` is ignored.

    Raises:
        UsageError: a cache type, a device or a pattern of the plan does not exist.
    """
    planner = _Planner(facts, devices, reserve_bytes)
    best = planner.at(plan)
    if best.fits or ctx_fixed:
        return best if best.fits else replace(best, kind="too_large")
    asked = padded(plan.n_ctx or trained_ctx(facts))
    n_ctx = largest_ctx(plan, planner.fits, low=min(MIN_CTX, asked), high=asked - CELL_STEP)
    if not n_ctx:
        return replace(best, kind="too_large")
    return replace(planner.at(replace(plan, n_ctx=n_ctx)), ctx_shrunk=True)
