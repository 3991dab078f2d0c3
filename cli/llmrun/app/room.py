"""The one rule of what is refused before anything is allocated: what a device has not the memory for.

The kernel grants main memory it does not have and ends the process later, so the engine cannot be relied on
to fail. Only what has to be in memory counts: cache, state and buffers, weights on a GPU, and weights in
main memory that are read instead of mapped. Mapped weights can be read again at any time; they make a run
slow, not impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmrun.errors import DoesNotFit
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.fit import max_gpu_layers
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.use import Use, device_use, needed_bytes, room_bytes
from llmrun.memory.ways import ways_out
from llmrun.units import format_bytes, format_tokens


@dataclass(frozen=True, slots=True)
class Lack:
    """A device that has less memory free than it needs; sizes in bytes."""

    device: DeviceInfo
    needed_bytes: int


def lacking(use: Use, plan: MemoryPlan) -> Iterator[Lack]:
    """The devices that cannot hold their part of the plan, main memory first."""
    devices = use.placement.devices
    sums = [held.sum_bytes for held in use.buckets]
    sums[0] -= use.buckets[0].weights_bytes if plan.use_mmap else 0
    for index, device in enumerate(devices):
        needed, free = needed_bytes(devices, sums, index), room_bytes(devices, index)
        if needed > free:
            yield Lack(replace(device, free_bytes=free), needed)


def check_room(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], *, auto_layers: bool
) -> None:
    """Raise `DoesNotFit`, with what would fit, when a device lacks memory for its part of the plan.

    `auto_layers`: other layers would be chosen for another context or cache.
    """
    use = device_use(facts, plan, devices)
    lack = next(lacking(use, plan), None)
    if lack is None:
        return
    device = lack.device
    needed, free = format_bytes(lack.needed_bytes), format_bytes(device.free_bytes)
    if device.kind == "cpu":
        message = f"{format_tokens(plan.n_ctx)} of context need {needed}, {free} of memory are free"
    else:
        layers = f"{use.placement.gpu_layers} of {facts.n_slots} layers"
        message = f"with {layers} on the GPU, {device.name} needs {needed}, {free} are free"
    hints = _hints(facts, plan, _with_mapped(use, plan, devices), auto_layers)
    hint = f"what would fit: {' or '.join(hints)}" if hints else "use a smaller model"
    raise DoesNotFit(message, f"{hint}; --force tries it anyway")


def _with_mapped(use: Use, plan: MemoryPlan, devices: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """`devices` with what is mapped into main memory added to what is free of it."""
    mapped_bytes = use.buckets[0].weights_bytes if plan.use_mmap else 0
    return tuple(
        replace(d, free_bytes=d.free_bytes + mapped_bytes) if d.kind == "cpu" else d for d in devices
    )


def _hints(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], auto_layers: bool
) -> list[str]:
    hints = []
    if plan.gpu_layers and not auto_layers:
        hints.append(f"-ngl {max_gpu_layers(facts, plan, devices, 0)}")
    ways = {way.kind: way.value for way in ways_out(facts, plan, devices, 0, auto_layers=auto_layers)}
    if "quantization" in ways:
        hints.append(f"the model in {ways['quantization']}")
    if "kv_type" in ways:
        hints.append(f"--kv-type {ways['kv_type']} -fa on")
    if "context" in ways:
        hints.append(f"-c {ways['context']}")
    return hints
