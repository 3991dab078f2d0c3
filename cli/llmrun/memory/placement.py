"""Which device holds what.

The engine counts places from the input to the output and gives the last `gpu_layers` of them to the GPUs,
the output being the place after the last layer. Several GPUs get consecutive runs, in proportion to
`tensor_split` or to their free memory. The input embedding always stays on the CPU; a model without an
output matrix of its own gets a second copy of the embedding where the output lies, unless a rule by name puts
both on one device. Source: load_tensors in llama.cpp's src/llama-model.cpp, create_tensor in
src/llama-model-loader.cpp.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from llmrun.errors import UsageError
from llmrun.gguf.hparams import MemoryFacts
from llmrun.gguf.weights import INPUT_SLOT, Weight
from llmrun.memory.patterns import expert_rules, tensor_pattern
from llmrun.memory.plan import DeviceInfo, DeviceKind, MemoryPlan


class _Listed(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> DeviceKind: ...


Listed = TypeVar("Listed", bound=_Listed)

_HOST = DeviceInfo("CPU", "cpu", 0, 0)


def host_of(devices: Sequence[DeviceInfo]) -> DeviceInfo:
    """The CPU among `devices`; one without memory where none is listed."""
    return next((d for d in devices if d.kind == "cpu"), _HOST)


def gpus_of(devices: Sequence[Listed]) -> tuple[Listed, ...]:
    """Devices layers can go to, in the engine's order: servers first, then the GPUs here, the integrated ones
    where there are no others. Source: llama_prepare_model_devices in src/llama.cpp."""
    gpus = [d for d in devices if d.kind == "gpu"]
    servers = [d for d in gpus if d.name.startswith("RPC")]
    here = [d for d in gpus if d not in servers] or [d for d in devices if d.kind == "igpu"]
    return (*servers, *here)


def _f32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _split_points(plan: MemoryPlan, gpus: Sequence[DeviceInfo], host: DeviceInfo) -> list[float]:
    shares = [float(s) for s in plan.tensor_split[: len(gpus)]]
    shares += [0.0] * (len(gpus) - len(shares))
    if not any(shares):
        shares = [float((d if d.total_bytes else host).free_bytes) for d in gpus]
    if not any(shares):
        shares = [1.0] * len(gpus)
    points, total = [], 0.0
    for share in shares:
        total = _f32(total + share)
        points.append(total)
    return [_f32(p / total) for p in points]


@dataclass(frozen=True, slots=True)
class Placement:
    """Device of each place, by index into `devices`; the host is number 0.

    `pipelined`: the GPUs work on several micro-batches at a time. `mapped`: the file is mapped, not read.
    """

    devices: tuple[DeviceInfo, ...]
    slots: tuple[int, ...]
    gpu_layers: int
    pipelined: bool = False
    mapped: bool = True

    def layer(self, index: int) -> int:
        """Device of a layer."""
        return self.slots[index]

    @property
    def output(self) -> int:
        """Device of the output."""
        return self.slots[-1]


def place(facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo]) -> Placement:
    """Divide the places of a model among `devices`.

    Raises:
        UsageError: as `check_gpus`.
    """
    host, gpus = host_of(devices), gpus_of(devices)
    check_gpus(len(gpus), plan.main_gpu if plan.split_mode == "none" else None, plan.tensor_split)
    if gpus and plan.split_mode == "none":
        gpus = (gpus[plan.main_gpu],)
    on_gpu = min(max(0, plan.gpu_layers), facts.n_slots) if gpus else 0
    start = facts.n_slots - on_gpu
    points = _split_points(plan, gpus, host) if on_gpu else []
    slots = [0] * facts.n_slots
    for slot in range(start, facts.n_slots):
        share = _f32((slot - start) / on_gpu)
        slots[slot] = 1 + min(bisect_right(points, share), len(gpus) - 1)
    others = (*gpus, *(d for d in devices if d.kind == "accel"))
    pipelined = (
        on_gpu == facts.n_slots and _may_pipeline(plan, len(gpus)) and all(d.pipelines for d in others)
    )
    mapped = plan.use_mmap and (not on_gpu or all(gpu.maps for gpu in gpus))
    return Placement((host, *gpus), tuple(slots), on_gpu, pipelined, mapped)


def check_gpus(n_gpus: int, main_gpu: int | None, tensor_split: Sequence[float]) -> None:
    """Raise `UsageError` where a model cannot go to one of `n_gpus`, or be shared by them, in this way."""
    if main_gpu is not None:
        if tensor_split:
            raise UsageError(
                "a main GPU takes the whole model; tensor split shares it", "give one of the two"
            )
        if not 0 <= main_gpu < max(n_gpus, 1):
            hint = f"GPUs are numbered 0 to {n_gpus - 1}" if n_gpus else "leave --main-gpu out"
            raise UsageError(f"there is no GPU {main_gpu}", hint)
    if len(tensor_split) > max(n_gpus, 1):
        raise UsageError(
            f"a tensor split of {len(tensor_split)} shares for {n_gpus} GPU devices",
            "give one share for each GPU",
        )
    if tensor_split and (min(tensor_split) < 0 or not 0 < sum(tensor_split) < float("inf")):
        raise UsageError(
            f"the tensor split {', '.join(f'{share:g}' for share in tensor_split)} shares nothing",
            "give shares of 0 or more, at least one above 0",
        )


def _may_pipeline(plan: MemoryPlan, n_gpus: int) -> bool:
    """Source: constructor of llama_context; a weight that is forced anywhere rules it out."""
    moved = plan.overrides or plan.cpu_moe or plan.n_cpu_moe
    return n_gpus > 1 and plan.offload_kqv and not moved


def _overridden(
    facts: MemoryFacts, plan: MemoryPlan, placement: Placement
) -> list[tuple[re.Pattern[str], int]]:
    names = {name: i for i, d in enumerate(placement.devices) for name in (d.name, d.buffer) if name}
    names["CPU"] = 0
    experts = expert_rules(cpu_moe=plan.cpu_moe, n_cpu_moe=plan.n_cpu_moe, n_layer=facts.n_layer_all)
    rules = []
    for pattern, device in (*plan.overrides, *experts):
        if device not in names:
            raise UsageError(f"no device {device} for tensors {pattern}", f"devices: {', '.join(names)}")
        rules.append((tensor_pattern(pattern), names[device]))
    return rules


@dataclass(frozen=True, slots=True)
class PlacedWeight:
    """A weight on a device (an index into the placement's devices)."""

    weight: Weight
    device: int


def place_weights(facts: MemoryFacts, plan: MemoryPlan, placement: Placement) -> tuple[PlacedWeight, ...]:
    """Every copy of every weight with its device.

    Raises:
        UsageError: an override names no device or is no pattern.
    """
    rules = _overridden(facts, plan, placement)
    with_layers = sorted(set(placement.slots[:-1]))
    placed = []
    for weight in facts.weights:
        forced = next((target for pattern, target in rules if pattern.search(weight.name)), None)
        if weight.spread:
            devices = with_layers if forced is None else [forced]
            placed += [PlacedWeight(weight, device) for device in devices]
            continue
        device = 0 if weight.slot == INPUT_SLOT else placement.slots[min(weight.slot, facts.n_layer_all)]
        device = device if forced is None else forced
        placed.append(PlacedWeight(weight, device))
        if facts.tied and weight.name == "token_embd.weight":
            output = placement.output if forced is None else forced
            twice = facts.tied_first and not (output == 0 and placement.mapped)
            if output != device or twice:
                placed.append(PlacedWeight(weight, output))
    return tuple(placed)
