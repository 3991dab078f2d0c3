"""What each device has to hold under a plan, and whether it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import cells_of, layer_kv_bytes, layer_state_bytes, output_bytes
from llmrun.memory.compute import compute_bytes
from llmrun.memory.placement import Placement, place, place_weights
from llmrun.memory.plan import Buckets, DeviceInfo, MemoryPlan


@dataclass(frozen=True, slots=True)
class Use:
    """The placement of a plan and what it puts on each of its devices, host first."""

    placement: Placement
    buckets: tuple[Buckets, ...]

    def fits(self, reserve_bytes: int) -> bool:
        """True where every device holds its part and the reserve."""
        return all(self.device_fits(i, reserve_bytes) for i in range(len(self.buckets)))

    def gpus_fit(self, reserve_bytes: int) -> bool:
        """The same without the host."""
        return all(self.device_fits(i, reserve_bytes) for i in range(1, len(self.buckets)))

    def device_fits(self, index: int, reserve_bytes: int) -> bool:
        """True where a device has room for its part and the reserve; always where it holds nothing."""
        needed = self.buckets[index].sum_bytes
        return needed == 0 or needed + reserve_bytes <= self.placement.devices[index].free_bytes


def device_use(facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo]) -> Use:
    """What `plan` puts on each device.

    Raises:
        UsageError: a cache type, a device or a pattern of the plan does not exist.
    """
    placement = place(facts, plan, devices)
    weights = place_weights(facts, plan, placement)
    cells = cells_of(facts, plan)
    count = len(placement.devices)
    held, kv, state = [0] * count, [0] * count, [0] * count
    for placed in weights:
        held[placed.device] += placed.weight.size_bytes
    for il, layer in enumerate(facts.layers):
        device = placement.layer(il) if plan.offload_kqv else 0
        kv[device] += layer_kv_bytes(facts, layer, plan, cells)
        state[device] += layer_state_bytes(layer, plan)
    compute = compute_bytes(facts, plan, cells, placement, weights)
    output = (output_bytes(facts, plan), *(0,) * (count - 1))
    return Use(
        placement,
        tuple(Buckets(held[i], 0, kv[i], state[i], compute[i], output[i]) for i in range(count)),
    )
