"""Decides before a load which layers go to GPUs, and refuses what has no room.

Where the engine lists no GPU nothing is planned, and a rough sum is enough to let most contexts through.
Weights in main memory that are mapped, and the reserve there, give way before a plan is given up: they make
a run slow, not impossible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmrun.app.memory.attention import attention_off_gpus, check_cache_types
from llmrun.app.memory.devices import check_present, known_devices, on_devices, require_gpu, with_named
from llmrun.app.memory.host_memory import host_memory
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.app.memory.room import check_room, not_allocated
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import devices as engine_devices
from llmrun.engine.flash import flash_attention_types
from llmrun.engine.rpc import add_rpc_servers
from llmrun.errors import DoesNotFit
from llmrun.gguf.facts import ModelFacts
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.memory.fit import OffloadPlan, plan_offload
from llmrun.memory.placement import gpus_of, host_of, place
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES, DeviceInfo, MemoryPlan
from llmrun.units import format_tokens

_F32_BYTES = 4
_WORTH_A_LOOK = 4
"""An exact sum is made where a rough one, in the widest type, passes this part of the free memory."""
_BOUNDLESS = 1 << 60
_PLAIN_TYPES = ("f16", "f16")
"""Cache types that no model refuses."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory to plan with. `named`: free bytes of devices by name instead of what they have; `reserve_bytes`:
    what a plan leaves free on each; `force`: load what has no room as well."""

    named: tuple[tuple[str, int], ...] = ()
    reserve_bytes: int = DEFAULT_RESERVE_BYTES
    force: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to load: headers of all its files, and the facts of the first."""

    headers: tuple[GgufHeader, ...]
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Offload:
    """What "auto" came to. The output counts as a layer; `n_cpu_moe` layers keep their experts on the CPU."""

    kind: str
    devices: tuple[str, ...]
    gpu_layers: int
    n_layers: int
    n_cpu_moe: int
    n_ctx: int
    ctx_shrunk: bool

    def as_json(self) -> dict[str, object]:
        """The plan in the JSON settings."""
        return {
            "kind": self.kind,
            "devices": list(self.devices),
            "n_gpu_layers": self.gpu_layers,
            "n_layers": self.n_layers,
            "n_cpu_moe": self.n_cpu_moe,
            "n_ctx": self.n_ctx,
            "ctx_shrunk": self.ctx_shrunk,
        }

    def __str__(self) -> str:
        """The plan in one line."""
        if not self.gpu_layers:
            line = f"all {self.n_layers} layers on the CPU, since none fits on {' and '.join(self.devices)}"
        else:
            part = "all" if self.gpu_layers == self.n_layers else f"{self.gpu_layers} of"
            line = f"{part} {self.n_layers} layers on {' and '.join(self.devices)}"
        if self.gpu_layers and self.n_cpu_moe:
            line += f", the experts of {self.n_cpu_moe} on the CPU"
        if self.ctx_shrunk:
            line += f", context shortened to {format_tokens(self.n_ctx)}"
        return f"offload: {line}"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What the engine is asked for, with layers decided; `offload` where "auto" had something to decide.

    `warnings`: what will work, but badly.
    """

    model: ModelParams
    context: ContextParams
    offload: Offload | None = None
    warnings: tuple[str, ...] = ()


def plan_load(
    subject: Subject,
    model: ModelParams,
    context: ContextParams,
    budget: Budget,
    *,
    ctx_fixed: bool,
    strict: bool = False,
) -> LoadPlan:
    """Layers, experts and, unless it is fixed, the context that fit on the engine's devices.

    `strict`: layers that are asked for must have a GPU to go to.

    Raises:
        DoesNotFit: a device has not the memory, and `budget` does not force it.
        UsageError: a device or pattern that does not exist, cache types that the engine refuses, no GPU
            where one is required.
        NetworkFailure, EngineFailure: the engine's devices cannot be listed.
    """
    if (context.type_k, context.type_v) != _PLAIN_TYPES:
        facts = memory_facts(subject.headers[0], subject.headers[1:])
        check_cache_types(facts, memory_plan(facts, model, context))
    found, devices = _devices(model, budget)
    if strict:
        require_gpu(model.gpu_layers, devices)
    model = on_devices(model, found, devices, named=bool(budget.named))
    if model.gpu_layers != 0 and gpus_of(devices):
        return _on_gpus(subject, model, context, devices, budget, ctx_fixed)
    if not budget.force:
        _check_host(subject, model, context, host_of(devices))
    return LoadPlan(model, context)


def failed_load(subject: Subject, plan: LoadPlan, budget: Budget, failure: DoesNotFit) -> DoesNotFit:
    """The engine's `failure` to allocate in the words of a refusal: numbers, and what would fit."""
    facts = memory_facts(subject.headers[0], subject.headers[1:])
    _, devices = _devices(plan.model, budget)
    wanted = memory_plan(facts, plan.model, plan.context)
    return not_allocated(facts, wanted, devices, failure, auto_layers=plan.offload is not None)


def _devices(model: ModelParams, budget: Budget) -> tuple[tuple[DeviceInfo, ...], tuple[DeviceInfo, ...]]:
    """What the engine sees, and the devices to plan with; the CPU alone where no GPU can matter."""
    host = host_memory()
    if model.gpu_layers == 0 and not budget.named:
        alone = known_devices((), host)
        return alone, alone
    add_rpc_servers(model.rpc)
    found = known_devices(engine_devices(), host)
    named = dict(budget.named)
    check_present(found, named, "--device takes the name of a device that is there")
    return found, with_named(found, named)


def _check_host(subject: Subject, model: ModelParams, context: ContextParams, host: DeviceInfo) -> None:
    """Refuse what main memory alone cannot hold."""
    facts = subject.facts
    n_ctx = context.n_ctx or facts.n_ctx_train
    rough_bytes = n_ctx * sum(facts.n_head_kv) * (facts.head_size_k + facts.head_size_v) * _F32_BYTES
    if model.use_mmap and host.space_bytes is None and rough_bytes < host.free_bytes // _WORTH_A_LOOK:
        return

    details = memory_facts(subject.headers[0], subject.headers[1:])
    plan = memory_plan(details, replace(model, gpu_layers=0, override_tensor=()), context)
    check_room(details, plan, (host,), auto_layers=False)


def _on_gpus(
    subject: Subject,
    model: ModelParams,
    context: ContextParams,
    devices: tuple[DeviceInfo, ...],
    budget: Budget,
    ctx_fixed: bool,
) -> LoadPlan:

    facts = memory_facts(subject.headers[0], subject.headers[1:])
    plan, auto = memory_plan(facts, model, context), model.gpu_layers == "auto"
    best = _best(facts, plan, devices, budget, ctx_fixed) if auto else None
    plan = plan if best is None else best.plan
    if not budget.force:
        check_room(facts, plan, devices, auto_layers=auto)
    placed = place(facts, plan, devices)
    warnings = tuple(attention_off_gpus(facts, plan, context, placed, flash_attention_types))
    if best is None:
        return LoadPlan(model, context, None, warnings)
    offload = Offload(
        kind=best.kind,
        devices=tuple(device.name for device in placed.devices[1:]),
        gpu_layers=placed.gpu_layers,
        n_layers=facts.n_slots,
        n_cpu_moe=len(facts.layers) if plan.cpu_moe else plan.n_cpu_moe,
        n_ctx=plan.n_ctx,
        ctx_shrunk=best.ctx_shrunk,
    )
    model = replace(model, gpu_layers=placed.gpu_layers, cpu_moe=plan.cpu_moe, n_cpu_moe=plan.n_cpu_moe)
    return LoadPlan(model, replace(context, n_ctx=plan.n_ctx), offload, warnings)


def _best(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], budget: Budget, ctx_fixed: bool
) -> OffloadPlan:
    best = plan_offload(facts, plan, devices, budget.reserve_bytes, ctx_fixed=ctx_fixed)
    if best.kind != "too_large":
        return best
    more = _BOUNDLESS if budget.force else budget.reserve_bytes
    if place(facts, plan, devices).mapped:
        more += sum(weight.size_bytes for weight in facts.weights)
    roomy = [replace(d, free_bytes=d.free_bytes + more) if d.kind == "cpu" else d for d in devices]
    return plan_offload(facts, plan, roomy, budget.reserve_bytes)
