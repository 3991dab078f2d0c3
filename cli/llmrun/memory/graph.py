"""The big tensors of each kind of layer, in the order the engine computes them.

Each function walks through one part of the graph and tells an `Arena` what is taken and given back. Widths
count f32 numbers a token. A projection that is looked at as heads cannot be overwritten by its rotation, so
both exist for a moment; sums and norms overwrite their input. Source: llama.cpp, src/llama-graph.cpp
(build_attn_mha, build_ffn, build_moe_ffn) and src/models/*.cpp.
"""

from __future__ import annotations

from llmrun.gguf.hparams import LayerFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, row_bytes
from llmrun.memory.feed import walk_feed
from llmrun.memory.mixers import mixed_by_state
from llmrun.memory.walk import Read, Walk, is_turned

_ROTATION: tuple[Read, ...] = ("positions", "k")


def attends(layer: LayerFacts) -> bool:
    """True for a layer with attention, to its own cache or to an earlier layer's."""
    return bool(layer.heads) and (bool(layer.k_width) or not layer.state)


def walk_layer(walk: Walk, layer: LayerFacts, residual: Block, *, last: bool) -> Block:
    """One layer; returns what the next one reads. After the last one's attention only outputs go on."""
    arena, facts = walk.arena, walk.facts
    mixed = _mixed(walk, layer)
    if last:
        walk.tokens = min(walk.tokens, max(1, walk.plan.n_seq))
        kept = walk.numbers(facts.n_embd)
        arena.give(mixed)
        mixed = walk.numbers(facts.n_embd)
        arena.give(residual)
        residual, mixed = mixed, kept
    if layer.state and layer.shape.mixer.kind == "delta_net":  # added to the residual's place, not to its own
        residual, mixed = mixed, residual
    arena.give(residual)
    shape = layer.shape
    if not shape.ff and not shape.n_expert:
        return mixed
    out = walk_feed(walk, layer, walk.numbers(facts.n_embd))
    arena.give(mixed)
    return out


def walk_streams(walk: Walk, layer: LayerFacts, residual: Block) -> Block:
    """A layer that keeps several residual streams, predicts them all and runs one through its parts."""
    arena, width = walk.arena, walk.facts.streams * walk.facts.n_embd
    turned = walk.numbers(width)
    mixed = walk.numbers(width)
    arena.give(turned)
    predicted = walk.numbers(width)
    arena.give(mixed, residual)
    beside = walk.numbers(walk.facts.n_embd)
    out = walk_layer(walk, layer, walk.numbers(walk.facts.n_embd), last=False)
    repeated = walk.numbers(width)
    arena.give(out, beside, predicted)
    joined = walk.numbers(width)
    arena.give(repeated)
    return joined


def _mixed(walk: Walk, layer: LayerFacts) -> Block:
    """What attention, a recurrent mixer or both add to the residual."""
    arena = walk.arena
    parts = []
    norm = walk.numbers(walk.facts.n_embd)
    if attends(layer):
        parts.append(_latent(walk, layer, norm) if walk.facts.mla else _attention(walk, layer, norm))
        norm = walk.numbers(walk.facts.n_embd) if layer.state else norm
    if layer.state:
        parts.append(mixed_by_state(walk, layer, norm))
    if not parts:
        return norm
    arena.give(*parts[1:])
    return parts[0]


def _rotated(walk: Walk, weight: str, width: int, *read: Block) -> Block:
    """A projection with positions; `read` is not needed any more once it is computed.

    What the rotation reads comes with the projection, or with a norm in between where that is lent.
    """
    normed = f"{weight}_norm" in walk.borrowed
    plain = walk.product(weight, width, *(() if normed else _ROTATION))
    walk.arena.give(*read)
    rotated = walk.numbers(width)
    walk.arena.give(plain)
    walk.take_read(*_ROTATION)
    return rotated


def _turned(walk: Walk, type_name: str, head_size: int, block: Block, width: int) -> Block:
    """The rows that a quantized cache stores, or what is read from it turned back."""
    if not is_turned(type_name, head_size):
        return block
    turned = walk.numbers(width)
    walk.arena.give(block)
    return turned


def _attention(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    arena = walk.arena
    q_width, out_width = layer.heads * layer.head_k, layer.heads * layer.head_v
    k_width, v_width = layer.kv_heads * layer.head_k, layer.kv_heads * layer.head_v
    if layer.shape.query >= 2 * q_width:
        return _gated_attention(walk, layer, norm)
    if layer.shape.qkv_fused:
        fused = walk.product("attn_qkv", q_width + k_width + v_width, *_ROTATION)
        arena.give(norm)
        query, key = walk.numbers(q_width), walk.numbers(k_width)
        arena.give(key, fused)
    else:
        read = () if layer.k_width else (norm,)
        query = _rotated(walk, "attn_q", q_width, *read)
        query = _turned(walk, walk.plan.type_k, layer.head_k, query, q_width)
        if layer.k_width:
            arena.give(*_stored(walk, layer, norm))
    out = _scores(walk, layer, query, out_width)
    out = _turned(walk, walk.plan.type_v, layer.head_v, out, out_width)
    projected = walk.product("attn_output", walk.facts.n_embd)
    arena.give(out)
    return projected


def _stored(walk: Walk, layer: LayerFacts, norm: Block) -> tuple[Block, Block]:
    """Key and value as the cache takes them: the key is computed first where there are windows.

    Source: the two build_attn of src/llama-graph.cpp for caches with and without windows.
    """
    k_width, v_width = layer.kv_heads * layer.head_k, layer.kv_heads * layer.head_v

    def key(*read: Block) -> Block:
        rotated = _rotated(walk, "attn_k", k_width, *read)
        return _turned(walk, walk.plan.type_k, layer.head_k, rotated, k_width)

    def value(*read: Block) -> Block:
        plain = walk.product("attn_v", v_width, "v")
        walk.arena.give(*read)
        return _turned(walk, walk.plan.type_v, layer.head_v, plain, v_width)

    if walk.facts.n_swa:
        return key(), value(norm)
    return value(), key(norm)


def _gated_attention(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Queries come with a gate that the result is multiplied with (src/models/qwen3next.cpp)."""
    arena, q_width, k_width = walk.arena, layer.heads * layer.head_k, layer.kv_heads * layer.head_k
    both = walk.product("attn_q", 2 * q_width)
    query = walk.numbers(q_width)
    walk.take_read(*_ROTATION)
    query = _turned(walk, walk.plan.type_k, layer.head_k, query, q_width)
    value = walk.product("attn_v", layer.v_width, "v")
    value = _turned(walk, walk.plan.type_v, layer.head_v, value, layer.v_width)
    key = _rotated(walk, "attn_k", k_width, norm)
    arena.give(_turned(walk, walk.plan.type_k, layer.head_k, key, k_width), value)
    out = _scores(walk, layer, query, layer.heads * layer.head_v)
    out = _turned(walk, walk.plan.type_v, layer.head_v, out, layer.heads * layer.head_v)
    gate = walk.numbers(q_width)
    arena.give(both, gate)
    projected = walk.product("attn_output", walk.facts.n_embd)
    arena.give(out)
    return projected


def _scores(walk: Walk, layer: LayerFacts, query: Block, out_width: int) -> Block:
    """Attention proper: fused into one result, or with all scores held at once."""
    if walk.taken_over == "attention" and walk.host is not None:
        return _scores_on_host(walk, walk.host, layer, query, out_width)
    arena, (k_bytes, v_bytes) = walk.arena, _cache_copies(walk, layer)
    keys = arena.take(k_bytes)
    if walk.plan.flash_attn == "on":
        values = arena.take(v_bytes)
        walk.take_attended(layer.windowed)
        out = walk.numbers(out_width)
        arena.give(query, keys, values)
        walk.give_mask(layer.windowed)
        return out
    pauses = "attn_sinks" in walk.borrowed
    if not pauses:
        walk.take_attended(layer.windowed)
        values = arena.take(v_bytes)
    scores = walk.numbers(walk.kept(layer.windowed) * layer.heads)
    arena.give(query, keys)
    if pauses:
        walk.take_attended(layer.windowed)
        values = arena.take(v_bytes)
    walk.give_mask(layer.windowed)
    mixed = walk.numbers(out_width)
    arena.give(scores, values)
    if walk.taken_over and walk.host is not None:
        size = F32_BYTES * walk.tokens * layer.heads * (layer.shape.latent.head_v or layer.head_v)
        walk.host.give(walk.host.take(size), walk.host.take(size))
    out = walk.numbers(out_width)
    arena.give(mixed)
    return out


def _scores_on_host(walk: Walk, host: Arena, layer: LayerFacts, query: Block, out_width: int) -> Block:
    """Attention by the CPU, which reads copies of the query and the new rows; this device gets the result."""
    row = F32_BYTES * walk.tokens
    rows = [host.take(row * width) for width in (layer.k_width, layer.v_width)]
    copy = host.take(row * layer.heads * layer.head_k)
    host.give(*rows)
    scores = host.take(row * walk.kept(layer.windowed) * layer.heads)
    host.give(copy)
    mixed = host.take(row * out_width)
    host.give(scores)
    result = host.take(row * out_width)
    host.give(mixed, result)
    walk.take_coming()
    out = walk.numbers(out_width)
    walk.arena.give(query)
    return out


def _cache_copies(walk: Walk, layer: LayerFacts) -> tuple[int, int]:
    """Bytes of K and V that attention reads here and that are kept elsewhere; latent V is a view of K."""
    if not walk.cache_apart:
        return 0, 0
    cells = walk.kept(layer.windowed) * walk.cells.n_stream
    keys = cells * row_bytes(walk.plan.type_k, layer.k_width)
    return keys, keys if walk.facts.mla else cells * row_bytes(walk.plan.type_v, layer.v_width)


def _latent(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Attention over latent rows: queries are brought into the latent space, results out of it again."""
    arena, heads, latent = walk.arena, layer.heads, layer.shape.latent
    rank = layer.head_k - latent.rotated
    lowered = walk.product("attn_q_a", latent.q_rank)
    query = walk.product("attn_q_b", heads * latent.head_k)
    arena.give(lowered)
    absorbed = walk.product("attn_k_b", heads * rank, *_ROTATION)
    rotated = walk.numbers(heads * latent.rotated)
    arena.give(query)
    whole = walk.numbers(heads * layer.head_k)
    arena.give(absorbed, rotated)
    row = walk.product("attn_kv_a_mqa", layer.head_k)
    arena.give(norm)
    lower, key_rotated = walk.numbers(rank), walk.numbers(latent.rotated)
    arena.give(row)
    key = walk.numbers(layer.head_k)
    arena.give(lower, key_rotated, key)
    out = _scores(walk, layer, whole, heads * rank)
    opened = walk.product("attn_v_b", heads * latent.head_v)
    arena.give(out)
    ordered = walk.numbers(heads * latent.head_v)
    arena.give(opened)
    projected = walk.product("attn_output", walk.facts.n_embd)
    arena.give(ordered)
    return projected
