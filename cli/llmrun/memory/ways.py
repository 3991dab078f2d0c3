"""Ways out for a model that does not fit: single changes, each tried out before it is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import CELL_STEP, padded, position_bytes, refusal
from llmrun.memory.fit import beyond, largest_ctx, plan_offload, trained_ctx
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES, DeviceInfo, MemoryPlan
from llmrun.memory.quants import QUANT_BITS, requantized
from llmrun.memory.use import Use, device_use
from llmrun.reports.vram import Remedy, RemedyKind

_SHORTEST_CTX = 2 * CELL_STEP
_CACHE_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True)
class _Search:
    devices: Sequence[DeviceInfo]
    reserve_bytes: int
    auto_layers: bool

    def use(self, facts: MemoryFacts, plan: MemoryPlan) -> Use:
        if self.auto_layers:
            return plan_offload(facts, plan, self.devices, self.reserve_bytes).use
        return device_use(facts, plan, self.devices)

    def fits(self, facts: MemoryFacts, plan: MemoryPlan) -> bool:
        if refusal(facts, plan) or beyond(facts, plan, self.devices, self.reserve_bytes):
            return False
        return self.use(facts, plan).fits(self.reserve_bytes)

    def first(
        self, kind: RemedyKind, changes: Iterable[tuple[str, MemoryFacts, MemoryPlan]]
    ) -> tuple[Remedy, ...]:
        """The first change that fits, as the only element; empty where none does."""
        for value, facts, plan in changes:
            if self.fits(facts, plan):
                total = sum(b.sum_bytes for b in self.use(facts, plan).buckets)
                return (Remedy(kind, value, total),)
        return ()


def _smaller_quants(facts: MemoryFacts, plan: MemoryPlan) -> Iterable[tuple[str, MemoryFacts, MemoryPlan]]:
    for name, bits in QUANT_BITS.items():
        smaller = requantized(facts, bits)
        if smaller is not None:
            yield name, smaller, plan


def _smaller_caches(facts: MemoryFacts, plan: MemoryPlan) -> Iterable[tuple[str, MemoryFacts, MemoryPlan]]:
    now = sum(position_bytes(facts, layer, plan) for layer in facts.layers)
    for name in _CACHE_TYPES:
        changed = replace(plan, type_k=name, type_v=name, flash_attn="on")
        if (
            not refusal(facts, changed)
            and sum(position_bytes(facts, la, changed) for la in facts.layers) < now
        ):
            yield name, facts, changed


def ways_out(
    facts: MemoryFacts,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    *,
    auto_layers: bool = True,
) -> tuple[Remedy, ...]:
    """The mildest change of each kind that makes `plan` fit; kinds that do not help are left out.

    `auto_layers`: layers are planned anew for each change; else they stay as `plan` has them.
    """
    search = _Search(devices, reserve_bytes, auto_layers)
    quants = search.first("quantization", _smaller_quants(facts, plan))
    caches = search.first("kv_type", _smaller_caches(facts, plan))
    asked = padded(plan.n_ctx or trained_ctx(facts))
    n_ctx = largest_ctx(plan, lambda p: search.fits(facts, p), low=_SHORTEST_CTX, high=asked - CELL_STEP)
    shorter = [(str(n_ctx), facts, replace(plan, n_ctx=n_ctx))] if n_ctx else []
    return (*quants, *caches, *search.first("context", shorter))
