"""The one rule of what is refused before anything is allocated: what a device has not the memory for.

The kernel grants main memory it does not have and ends the process later, so the engine cannot be relied on
to fail. Only what has to be in memory counts: cache, state and buffers, weights on a GPU, and weights in
main memory that are read instead of mapped. Mapped weights can be read again at any time; they make a run
slow, not impossible. Only a limit on the address space counts them as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmrun.errors import DoesNotFit
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.fit import max_gpu_layers
from llmrun.memory.placement import gpus_of, host_of
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.use import Use, device_use, needed_bytes, room_bytes
from llmrun.memory.ways import ways_out
from llmrun.units import format_bytes, format_tokens


@dataclass(frozen=True, slots=True)
class Lack:
    """A device that has less memory free than it needs; sizes in bytes. `mapped`: mapped weights count."""

    device: DeviceInfo
    needed_bytes: int
    mapped: bool = False


def lacking(use: Use) -> Iterator[Lack]:
    """The devices that cannot hold their part of the plan, main memory first."""
    devices, mapped = use.placement.devices, use.placement.mapped
    for index, (device, needed) in enumerate(zip(devices, _needed(use), strict=True)):
        free = room_bytes(devices, index)
        if needed > free:
            yield Lack(replace(device, free_bytes=free), needed)
        elif index == 0 and device.space_bytes is not None:
            needed += use.buckets[0].weights_bytes if mapped else 0
            if needed > device.space_bytes:
                yield Lack(replace(device, free_bytes=device.space_bytes), needed, mapped=mapped)


def _needed(use: Use) -> list[int]:
    """Bytes each device must hold at all times."""
    sums = [held.sum_bytes for held in use.buckets]
    sums[0] -= use.buckets[0].weights_bytes if use.placement.mapped else 0
    return [needed_bytes(use.placement.devices, sums, index) for index in range(len(sums))]


def check_room(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], *, auto_layers: bool
) -> None:
    """Raise `DoesNotFit`, with what would fit, when a device lacks memory for its part of the plan.

    `auto_layers`: other layers would be chosen for another context or cache.
    """
    use = device_use(facts, plan, devices)
    lack = next(lacking(use), None)
    if lack is None:
        return
    device = lack.device
    needed, free = format_bytes(lack.needed_bytes), format_bytes(device.free_bytes)
    if device.kind == "cpu":
        what = f"the weights and {format_tokens(plan.n_ctx)}" if lack.mapped else format_tokens(plan.n_ctx)
        message = f"{what} of context need {needed}, {free} of memory are free"
    else:
        layers = f"{use.placement.gpu_layers} of {facts.n_slots} layers"
        message = f"with {layers} on the GPU, {device.name} needs {needed}, {free} are free"
    raise DoesNotFit(
        message, f"{_what_would_fit(facts, plan, use, devices, auto_layers)}; --force tries it anyway"
    )


def not_allocated(
    facts: MemoryFacts,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
    failure: DoesNotFit,
    *,
    auto_layers: bool,
) -> DoesNotFit:
    """`failure` of the engine to allocate, with what each device was to hold and what would fit.

    The engine does not say which device failed: GPUs are thought to have had less than they needed, main
    memory where they hold nothing.
    """
    use = device_use(facts, plan, devices)
    needed = {device.name: size for device, size in zip(use.placement.devices, _needed(use), strict=True)}
    sums = [
        f"{device.name} needs {format_bytes(needed[device.name])}, {format_bytes(device.free_bytes)} are free"
        for device in devices
        if needed.get(device.name)
    ]
    short = [d.name for d in devices if d.kind != "cpu" and needed.get(d.name)] or [host_of(devices).name]
    less = [
        replace(d, free_bytes=min(d.free_bytes, needed[d.name] - 1)) if d.name in short else d
        for d in devices
    ]
    return DoesNotFit(
        "; ".join([failure.message, *sums]), _what_would_fit(facts, plan, use, less, auto_layers)
    )


def _what_would_fit(
    facts: MemoryFacts, plan: MemoryPlan, use: Use, devices: Sequence[DeviceInfo], auto_layers: bool
) -> str:
    hints = _hints(facts, plan, _with_mapped(use, devices), auto_layers)
    return f"what would fit: {' or '.join(hints)}" if hints else "use a smaller model"


def _with_mapped(use: Use, devices: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """`devices` with what is mapped into main memory added to what is free of it, address space allowing."""
    mapped_bytes = use.buckets[0].weights_bytes if use.placement.mapped else 0
    return tuple(
        replace(d, free_bytes=_within(d, d.free_bytes + mapped_bytes)) if d.kind == "cpu" else d
        for d in devices
    )


def _within(device: DeviceInfo, size_bytes: int) -> int:
    return size_bytes if device.space_bytes is None else min(size_bytes, device.space_bytes)


def _hints(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], auto_layers: bool
) -> list[str]:
    hints = []
    if plan.gpu_layers and gpus_of(devices) and not auto_layers:
        hints.append(f"-ngl {max_gpu_layers(facts, plan, devices, 0)}")
    ways = {way.kind: way.value for way in ways_out(facts, plan, devices, 0, auto_layers=auto_layers)}
    if "quantization" in ways:
        hints.append(f"the model in {ways['quantization']}")
    if "kv_type" in ways:
        hints.append(f"--kv-type {ways['kv_type']} -fa on")
    if "context" in ways:
        hints.append(f"-c {ways['context']}")
    return hints
