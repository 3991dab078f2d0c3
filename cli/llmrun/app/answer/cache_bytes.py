"""Sizes of caches to the byte: the engine's log has them to 0.01 MiB only, and the rules tell the rest.

A device holds the caches of consecutive layers. Of all such runs one comes within the log's rounding; where
none does, because the rules do not know this model, the logged size stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from llmrun.engine.api import CacheBlock, EngineFacts
from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.memory.cache import cells_of, index_bytes, layer_state_bytes, position_bytes
from llmrun.memory.plan import MemoryPlan
from llmrun.units import MIB

_ROUNDING_BYTES = MIB // 200 + 1


def exact_blocks(facts: MemoryFacts, made: EngineFacts) -> tuple[CacheBlock, ...]:
    """The blocks of an open engine, their sizes exact where the rules of the cache agree with the log."""
    plan = MemoryPlan(
        n_ctx=made.n_ctx,
        n_seq=made.n_seq,
        kv_unified=made.kv_unified,
        n_batch=made.n_batch,
        n_ubatch=made.n_ubatch,
        type_k=made.type_k,
        type_v=made.type_v,
        flash_attn="off" if made.flash_attn == "off" else "on",
        swa_full=made.swa_full,
    )
    return tuple(_exact(block, _layer_sizes(facts, plan, block)) for block in made.cache_blocks)


def _exact(block: CacheBlock, sizes: list[list[int]]) -> CacheBlock:
    sums = {n_bytes for layers in sizes for n_bytes in _runs(layers)}
    near = [n_bytes for n_bytes in sums if abs(n_bytes - block.size_bytes) <= _ROUNDING_BYTES]
    best = min(near, key=lambda n_bytes: abs(n_bytes - block.size_bytes), default=block.size_bytes)
    return replace(block, size_bytes=best)


def _runs(sizes: list[int]) -> Iterable[int]:
    """Sums of consecutive sizes."""
    return (total for start in range(len(sizes)) for total in accumulate(sizes[start:]))


def _layer_sizes(facts: MemoryFacts, plan: MemoryPlan, block: CacheBlock) -> list[list[int]]:
    """What each layer has in a cache like `block`; sparse attention has a second one, of its indexers."""
    if block.kind == "recurrent":
        return [[layer_state_bytes(layer, plan) for layer in facts.layers if layer.state]]
    cells = cells_of(facts, plan)
    kept = cells.n_stream * (cells.window if block.kind == "swa" else cells.full)
    layers = [la for la in facts.layers if la.k_width and la.windowed == (block.kind == "swa")]

    def own(layer: LayerFacts) -> int:
        return position_bytes(facts, layer, plan) - index_bytes(layer, plan)

    indexed = [kept * index_bytes(layer, plan) for layer in layers]
    return [[kept * own(layer) for layer in layers], [n_bytes for n_bytes in indexed if n_bytes]]
