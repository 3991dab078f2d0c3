"""K/V cache and recurrent state, exact to the byte.

Attention to a text of n tokens needs the keys and values of all n, in every layer: the textbook size is
2 x layers x KV heads x head size x bytes x n. Engines depart from it: cells come in steps of 256, a
sliding-window layer keeps only its window and one micro-batch, latent attention keeps one row instead of
two, some layers read another layer's cache or keep a state of fixed size, and quantized types store blocks
with a scale. Rules and sources: docs/explanation/memory.md (llama.cpp, src/llama-context.cpp,
src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrun.errors import UsageError
from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.gguf.types import TENSOR_TYPES
from llmrun.memory.plan import MemoryPlan

CacheKind = Literal["full", "swa", "index"]

CELL_STEP = 256
F32_BYTES = 4
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_BLOCKS = {t.name.lower(): (t.block, t.block_bytes) for t in TENSOR_TYPES.values()}
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def padded(cells: int) -> int:
    """`cells` up to the next multiple of 256."""
    return cells + -cells % CELL_STEP


def row_bytes(type_name: str, width: int) -> int:
    """Bytes of `width` numbers stored as `type_name`: whole blocks, e.g. 34 bytes for 32 numbers of q8_0.

    Raises:
        UsageError: no such cache type.
    """
    if type_name not in CACHE_TYPES:
        raise UsageError(f"unknown K/V cache type {type_name!r}", f"choose one of {', '.join(CACHE_TYPES)}")
    block, block_bytes = _BLOCKS[type_name]
    return width // block * block_bytes


def is_quantized(type_name: str) -> bool:
    """True for types that store blocks with a scale."""
    return _BLOCKS[type_name][0] > 1


def refusal(facts: MemoryFacts, plan: MemoryPlan) -> str:
    """Why the engine would refuse this combination of cache types and context, empty where it takes it.

    Source: llama_init_from_model in src/llama-context.cpp.
    """
    if plan.n_seq > MAX_SEQUENCES:
        return f"{plan.n_seq:,} sequences; the engine takes at most {MAX_SEQUENCES}"
    if is_quantized(plan.type_v) and plan.flash_attn == "off":
        return f"a V cache of type {plan.type_v} needs flash attention"
    if facts.mla and plan.type_k != plan.type_v:
        return (
            f"this model keeps K and V in one row, so both need one type, not {plan.type_k} and {plan.type_v}"
        )
    for what, type_name in (("K", plan.type_k), ("V", plan.type_v)):
        block = _BLOCKS[type_name][0]
        for layer in facts.layers:
            size = layer.head_k if what == "K" else layer.head_v
            row = size if plan.flash_attn == "on" else layer.k_width if what == "K" else layer.v_width
            if layer.k_width and row % block:
                return f"{what} heads of {size} numbers do not fill the blocks of {block} of type {type_name}"
    return ""


@dataclass(frozen=True, slots=True)
class Cells:
    """Positions the caches have room for. Counts are per stream; split sequences have a stream each."""

    n_ctx: int
    n_ctx_seq: int
    n_stream: int
    full: int
    window: int
    n_batch: int
    n_ubatch: int


def cells_of(facts: MemoryFacts, plan: MemoryPlan) -> Cells:
    """Cells after the engine's rounding (constructor of llama_context; llama_kv_cache_iswa for windows)."""
    wanted = plan.n_ctx or facts.n_ctx_train or CELL_STEP
    n_seq = max(1, plan.n_seq)
    n_batch = min(wanted, max(plan.n_batch, n_seq))
    n_ubatch = min(n_batch, plan.n_ubatch or n_batch)
    n_ctx = padded(wanted)
    n_ctx_seq = n_ctx if plan.kv_unified else padded(n_ctx // n_seq) or CELL_STEP
    n_stream = 1 if plan.kv_unified else n_seq
    window = facts.n_swa * (n_seq if plan.kv_unified else 1) + n_ubatch
    kept = n_ctx_seq if plan.swa_full else padded(min(n_ctx_seq, window))
    return Cells(n_ctx_seq * n_stream, n_ctx_seq, n_stream, n_ctx_seq, kept, n_batch, n_ubatch)


def position_bytes(facts: MemoryFacts, layer: LayerFacts, plan: MemoryPlan) -> int:
    """Bytes one position takes in one layer, its window aside."""
    if not layer.k_width:
        return 0
    v_width = layer.v_width
    if v_width and plan.flash_attn == "off":
        v_width = facts.v_padded
    own = row_bytes(plan.type_k, layer.k_width) + row_bytes(plan.type_v, v_width)
    return own + index_bytes(layer, plan)


def index_bytes(layer: LayerFacts, plan: MemoryPlan) -> int:
    """The part of it that belongs to an indexer of sparse attention."""
    return row_bytes(plan.type_k, layer.index_k) + row_bytes(plan.type_v, layer.index_v)


def layer_kv_bytes(facts: MemoryFacts, layer: LayerFacts, plan: MemoryPlan, cells: Cells) -> int:
    """K/V bytes of one layer over all its cells and streams."""
    kept = cells.window if layer.windowed else cells.full
    return kept * cells.n_stream * position_bytes(facts, layer, plan)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """One cache as the engine lists it: full attention, sliding window, or keys of an indexer.

    `cells` are those of one stream, `size_bytes` covers all streams.
    """

    kind: CacheKind
    cells: int
    layers: int
    size_bytes: int


def cache_sizes(facts: MemoryFacts, plan: MemoryPlan) -> tuple[CacheSize, ...]:
    """The caches of a plan that hold something."""
    cells = cells_of(facts, plan)
    kinds: dict[CacheKind, list[int]] = {"full": [], "swa": [], "index": []}
    for layer in facts.layers:
        if not layer.k_width:
            continue
        index = index_bytes(layer, plan)
        kept = cells.window if layer.windowed else cells.full
        kinds["swa" if layer.windowed else "full"].append(
            kept * cells.n_stream * (position_bytes(facts, layer, plan) - index)
        )
        if index:
            kinds["index"].append(kept * cells.n_stream * index)
    return tuple(
        CacheSize(kind, cells.window if kind == "swa" else cells.full, len(sizes), sum(sizes))
        for kind, sizes in kinds.items()
        if sizes
    )


def layer_state_bytes(layer: LayerFacts, plan: MemoryPlan) -> int:
    """Recurrent state of one layer for all sequences, f32 always."""
    return F32_BYTES * layer.state * max(1, plan.n_seq)


def bytes_per_token(facts: MemoryFacts, plan: MemoryPlan) -> int:
    """What one more cell costs: the layers whose cache grows with the context."""
    growing = (layer for layer in facts.layers if plan.swa_full or not layer.windowed)
    return sum(position_bytes(facts, layer, plan) for layer in growing)


def output_bytes(facts: MemoryFacts, plan: MemoryPlan) -> int:
    """Logits handed out, one row a sequence (output_reserve in src/llama-context.cpp)."""
    return F32_BYTES * facts.n_vocab * max(1, plan.n_seq)
