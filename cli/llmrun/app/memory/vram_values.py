"""The memory room's values as those of the report, and the searches the report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llmrun.engine.probe.sizes import DeviceSizes, ProbedSizes
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import CELL_STEP, refusal
from llmrun.memory.fit import largest_ctx, plan_offload, trained_ctx
from llmrun.memory.placement import Placement, gpus_of
from llmrun.memory.plan import DeviceInfo, DeviceReport, MemoryPlan, MemoryReport
from llmrun.memory.use import device_use
from llmrun.reports.vram import (
    BUCKETS,
    Buckets,
    DeviceUse,
    GridCell,
    Offload,
    VerifiedDevice,
)

GRID_TYPES = ("f16", "q8_0", "q4_0")
SHORTEST_CTX = 4096


def buckets(sizes: DeviceSizes) -> Buckets:
    """A device's sizes by the engine; weights as the file's tensors."""
    return Buckets(**{name: getattr(sizes, name) for name in BUCKETS})


def device_uses(devices: Sequence[DeviceReport]) -> tuple[DeviceUse, ...]:
    """The devices of a report."""
    return tuple(
        DeviceUse(d.device.name, d.device.kind, d.device.free_bytes, d.device.total_bytes, d.use, d.fits)
        for d in devices
    )


def compared(formula: MemoryReport, dry: ProbedSizes, measured: ProbedSizes) -> tuple[VerifiedDevice, ...]:
    """Formula, dry run and load of every device that one of them knows."""
    by_formula = {d.device.name: d.use for d in formula.devices}
    names = dict.fromkeys([*by_formula, *(d.name for d in (*dry.devices, *measured.devices))])
    return tuple(
        VerifiedDevice(
            name, by_formula.get(name, Buckets()), buckets(dry.on(name)), buckets(measured.on(name))
        )
        for name in names
    )


def longest_ctx(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int, auto_layers: bool
) -> int | None:
    """The longest context that fits with layers chosen for it; None where there is nothing to choose."""
    if not auto_layers or not gpus_of(devices):
        return None
    return largest_ctx(
        plan,
        lambda longer: plan_offload(facts, longer, devices, reserve_bytes).fits,
        low=CELL_STEP,
        high=trained_ctx(facts),
    )


def grid(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int, auto_layers: bool
) -> tuple[GridCell, ...]:
    """Memory by context and K/V type, contexts in rows. `auto_layers`: each cell has layers of its own."""
    columns = [
        list(_column(facts, replace(plan, type_k=name, type_v=name), devices, reserve_bytes, auto_layers))
        for name in GRID_TYPES
    ]
    return tuple(cell for row in zip(*columns, strict=True) for cell in row)


def grid_contexts(n_ctx_trained: int) -> tuple[int, ...]:
    """Powers of two from 4,096 and the trained length itself."""
    lengths = []
    n_ctx = SHORTEST_CTX
    while n_ctx < n_ctx_trained:
        lengths.append(n_ctx)
        n_ctx *= 2
    return (*lengths, n_ctx_trained)


def _column(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], reserve_bytes: int, auto_layers: bool
) -> Iterator[GridCell]:
    """One K/V type. Sizes only grow, so that nothing longer fits once something did not."""
    refused, fits = bool(refusal(facts, plan)), True
    for n_ctx in grid_contexts(trained_ctx(facts)):
        if refused:
            yield GridCell(n_ctx, plan.type_k, None, False, "none")
            continue
        here = replace(plan, n_ctx=n_ctx)
        if fits and auto_layers:
            found = plan_offload(facts, here, devices, reserve_bytes)
            here, use = found.plan, found.use
        else:
            use = device_use(facts, here, devices)
        fits = fits and use.fits(reserve_bytes)
        total = sum(b.sum_bytes for b in use.buckets)
        yield GridCell(n_ctx, plan.type_k, total, fits, _offload(facts, here, use.placement))


def _offload(facts: MemoryFacts, plan: MemoryPlan, placement: Placement) -> Offload:
    if not placement.gpu_layers:
        return "none"
    experts_apart = facts.is_moe and (plan.cpu_moe or plan.n_cpu_moe > 0)
    return "part" if experts_apart or placement.gpu_layers < facts.n_slots else "all"
