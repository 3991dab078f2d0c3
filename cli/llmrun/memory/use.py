"""What each device has to hold under a plan, and whether it can.

Integrated GPUs (GGML_BACKEND_DEVICE_TYPE_IGPU) use main memory, of which their backends report a part or all
as free: it must not be counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.apart import apart_of
from llmrun.memory.cache import cells_of, layer_kv_bytes, layer_state_bytes, output_bytes
from llmrun.memory.compute import compute_bytes
from llmrun.memory.placement import Placement, place, place_weights
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.reports.vram import Buckets


def needed_bytes(devices: Sequence[DeviceInfo], sums: Sequence[int], index: int) -> int:
    """What device `index` must have room for, `sums` being what each holds, host first.

    An integrated GPU has no memory of its own: what it holds the host must hold, too.
    """
    if index:
        return sums[index]
    return sums[0] + sum(held for d, held in zip(devices, sums, strict=True) if d.kind == "igpu")


def room_bytes(devices: Sequence[DeviceInfo], index: int) -> int:
    """Free memory of device `index`; an integrated GPU can use no more than the host has left."""
    device = devices[index]
    return min(device.free_bytes, devices[0].free_bytes) if device.kind == "igpu" else device.free_bytes


def has_room(
    devices: Sequence[DeviceInfo], buckets: Sequence[Buckets], index: int, reserve_bytes: int
) -> bool:
    """Whether device `index` has room for what it must hold and the reserve; always where that is nothing."""
    needed = needed_bytes(devices, [held.sum_bytes for held in buckets], index)
    return needed == 0 or needed + reserve_bytes <= room_bytes(devices, index)


@dataclass(frozen=True, slots=True)
class Use:
    """The placement of a plan and what it puts on each of its devices, host first.

    `unmodelled`: what the compute buffers do not follow closely, mostly empty.
    """

    placement: Placement
    buckets: tuple[Buckets, ...]
    unmodelled: str = ""

    def fits(self, reserve_bytes: int) -> bool:
        """True where every device holds its part and the reserve."""
        return all(self.device_fits(i, reserve_bytes) for i in range(len(self.buckets)))

    def gpus_fit(self, reserve_bytes: int) -> bool:
        """The same without the host."""
        return all(self.device_fits(i, reserve_bytes) for i in range(1, len(self.buckets)))

    def device_fits(self, index: int, reserve_bytes: int) -> bool:
        """As `has_room`."""
        return has_room(self.placement.devices, self.buckets, index, reserve_bytes)


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
    apart = apart_of(facts, plan, cells, placement, weights)
    compute = compute_bytes(facts, plan, cells, placement, apart)
    output = (output_bytes(facts, plan), *(0,) * (count - 1))
    return Use(
        placement,
        tuple(Buckets(held[i], 0, kv[i], state[i], compute[i], output[i]) for i in range(count)),
        apart.unmodelled,
    )
