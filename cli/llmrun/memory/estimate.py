"""`estimate`: the whole report of a plan, from the header alone."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import bytes_per_token, cells_of
from llmrun.memory.fit import max_ctx, max_gpu_layers, plan_offload
from llmrun.memory.plan import (
    DEFAULT_RESERVE_BYTES,
    DeviceInfo,
    DeviceReport,
    MemoryPlan,
    MemoryReport,
)
from llmrun.memory.use import Use, device_use
from llmrun.reports.vram import Buckets, Verdict


def estimate(
    facts: MemoryFacts,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
) -> MemoryReport:
    """The memory of `plan` on `devices`. What a device's driver takes for itself is left to the reserve.

    Raises:
        UsageError: a cache type, a device or a pattern of the plan does not exist.
    """
    use = device_use(facts, plan, devices)
    cells = cells_of(facts, plan)
    return MemoryReport(
        method="formula",
        plan=plan,
        n_ctx=cells.n_ctx,
        n_ctx_seq=cells.n_ctx_seq,
        devices=device_reports(use, reserve_bytes),
        totals=sum(use.buckets, Buckets()),
        kv_bytes_per_token=bytes_per_token(facts, plan),
        verdict=_verdict(facts, plan, devices, use, reserve_bytes),
        max_ctx=max_ctx(facts, plan, devices, reserve_bytes),
        max_gpu_layers=max_gpu_layers(facts, plan, devices, reserve_bytes),
        unmodelled="; ".join(filter(None, (facts.unmodelled, use.unmodelled))),
    )


def device_reports(use: Use, reserve_bytes: int) -> tuple[DeviceReport, ...]:
    """Each device with what it holds and whether it can."""
    return tuple(
        DeviceReport(device, use.buckets[i], use.device_fits(i, reserve_bytes))
        for i, device in enumerate(use.placement.devices)
    )


def _verdict(
    facts: MemoryFacts, plan: MemoryPlan, devices: Sequence[DeviceInfo], use: Use, reserve_bytes: int
) -> Verdict:
    if use.fits(reserve_bytes):
        return "fits"
    other = plan_offload(facts, plan, devices, reserve_bytes, ctx_fixed=False)
    return "partial" if other.fits else "too_large"
