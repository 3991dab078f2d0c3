"""The big tensors of each kind of layer, in the order the engine computes them.

Each function walks through one part of the graph and tells an `Arena` what is taken and given back. Widths
count f32 numbers a token. A projection that is looked at as heads cannot be overwritten by its rotation, so
both exist for a moment; sums and norms overwrite their input. Source: llama.cpp, src/llama-graph.cpp
(build_attn_mha, build_ffn, build_moe_ffn) and src/models/*.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells, is_quantized
from llmrun.memory.plan import MemoryPlan

TURNED_HEAD_STEP = 64


def is_turned(type_name: str, head_size: int) -> bool:
    """True where the engine turns rows so that no number stands out, before it rounds them.

    Source: attn_rot_k and attn_rot_v in src/llama-kv-cache.cpp.
    """
    return is_quantized(type_name) and head_size % TURNED_HEAD_STEP == 0


@dataclass(slots=True)
class Walk:
    """A walk through the layers on one device. `masks`: mask and cache indices by kind of layer."""

    facts: MemoryFacts
    plan: MemoryPlan
    cells: Cells
    arena: Arena
    tokens: int
    masks: dict[bool, list[Block]] = field(default_factory=dict)

    def numbers(self, width: int) -> Block:
        """A tensor of `width` f32 numbers a token."""
        return self.arena.take(F32_BYTES * width * self.tokens)

    def states(self, count: int, width: int = 0) -> Block:
        """`count` numbers for each sequence, and `width` for each token."""
        return self.arena.take(F32_BYTES * (count * max(1, self.plan.n_seq) + width * self.tokens))


def walk_layer(
    walk: Walk, layer: LayerFacts, residual: Block, *, last: bool, mask_done: bool = False
) -> Block:
    """One layer; returns what the next one reads. After the last one's attention only outputs go on.

    `mask_done`: no later layer needs the mask of this one's kind.
    """
    arena, facts = walk.arena, walk.facts
    mixed = _mixed(walk, layer)
    if mask_done:
        arena.give(*walk.masks.pop(layer.windowed, ()))
    if last:
        walk.tokens = min(walk.tokens, max(1, walk.plan.n_seq))
        kept = walk.numbers(facts.n_embd)
        arena.give(mixed)
        mixed = walk.numbers(facts.n_embd)
        arena.give(residual)
        residual, mixed = mixed, kept
    arena.give(residual)
    shape = layer.shape
    if not shape.ff and not shape.n_expert:
        return mixed
    norm = walk.numbers(facts.n_embd)
    if shape.n_expert:
        out = _experts(walk, layer, norm)
    else:
        out = _feed_forward(walk, shape.ff, norm, gated=shape.gated, fused=shape.ff_fused)
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
    if layer.heads and (layer.k_width or not layer.state):
        parts.append(_latent(walk, layer, norm) if walk.facts.mla else _attention(walk, layer, norm))
        norm = walk.numbers(walk.facts.n_embd) if layer.state else norm
    if layer.state:
        parts.append(_MIXERS.get(layer.shape.mixer.kind, _plain_mixer)(walk, layer, norm))
    if not parts:
        return norm
    arena.give(*parts[1:])
    return parts[0]


def _rotated(walk: Walk, width: int) -> Block:
    plain = walk.numbers(width)
    rotated = walk.numbers(width)
    walk.arena.give(plain)
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
        fused = walk.numbers(q_width + k_width + v_width)
        arena.give(norm)
        query, key = walk.numbers(q_width), walk.numbers(k_width)
        arena.give(key, fused)
    else:
        query = _turned(walk, walk.plan.type_k, layer.head_k, _rotated(walk, q_width), q_width)
        if layer.k_width:
            value = _turned(walk, walk.plan.type_v, layer.head_v, walk.numbers(v_width), v_width)
            key = _turned(walk, walk.plan.type_k, layer.head_k, _rotated(walk, k_width), k_width)
            arena.give(key, value)
        arena.give(norm)
    out = _scores(walk, layer, query, out_width)
    out = _turned(walk, walk.plan.type_v, layer.head_v, out, out_width)
    projected = walk.numbers(walk.facts.n_embd)
    arena.give(out)
    return projected


def _gated_attention(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Queries come with a gate that the result is multiplied with (src/models/qwen3next.cpp)."""
    arena, q_width, k_width = walk.arena, layer.heads * layer.head_k, layer.kv_heads * layer.head_k
    both = walk.numbers(2 * q_width)
    plain = walk.numbers(k_width)
    value = _turned(walk, walk.plan.type_v, layer.head_v, walk.numbers(layer.v_width), layer.v_width)
    arena.give(norm)
    query = _turned(walk, walk.plan.type_k, layer.head_k, _rotated(walk, q_width), q_width)
    key = _turned(walk, walk.plan.type_k, layer.head_k, _rotated(walk, k_width), k_width)
    arena.give(plain, key, value)
    out = _scores(walk, layer, query, layer.heads * layer.head_v)
    out = _turned(walk, walk.plan.type_v, layer.head_v, out, layer.heads * layer.head_v)
    gate = walk.numbers(q_width)
    arena.give(both, gate)
    projected = walk.numbers(walk.facts.n_embd)
    arena.give(out)
    return projected


def _scores(walk: Walk, layer: LayerFacts, query: Block, out_width: int) -> Block:
    """Attention proper: fused into one result, or with all scores held at once."""
    arena = walk.arena
    if walk.plan.flash_attn == "on":
        out = walk.numbers(out_width)
        arena.give(query)
        return out
    kept = walk.cells.window if layer.windowed else walk.cells.full
    scores = walk.numbers(kept * layer.heads)
    arena.give(query)
    mixed = walk.numbers(out_width)
    arena.give(scores)
    out = walk.numbers(out_width)
    arena.give(mixed)
    return out


def _latent(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Attention over latent rows: queries are brought into the latent space, results out of it again."""
    arena, heads, latent = walk.arena, layer.heads, layer.shape.latent
    rank = layer.head_k - latent.rotated
    lowered = walk.numbers(latent.q_rank)
    query = walk.numbers(heads * latent.head_k)
    arena.give(lowered)
    absorbed = walk.numbers(heads * rank)
    rotated = walk.numbers(heads * latent.rotated)
    arena.give(query)
    whole = walk.numbers(heads * layer.head_k)
    arena.give(absorbed, rotated)
    row = walk.numbers(layer.head_k)
    arena.give(norm)
    lower, key_rotated = walk.numbers(rank), walk.numbers(latent.rotated)
    arena.give(row)
    key = walk.numbers(layer.head_k)
    arena.give(key_rotated, lower, key)
    out = _scores(walk, layer, whole, heads * rank)
    opened = walk.numbers(heads * latent.head_v)
    arena.give(out)
    ordered = walk.numbers(heads * latent.head_v)
    arena.give(opened)
    projected = walk.numbers(walk.facts.n_embd)
    arena.give(ordered)
    return projected


def _feed_forward(walk: Walk, width: int, norm: Block, *, gated: bool, fused: bool) -> Block:
    """Inner layer, gate beside it or in one matrix with it, and back; `norm` is what they read."""
    arena = walk.arena
    read = [walk.numbers(2 * width if fused else width)]
    if gated:
        read.append(walk.numbers(width))
    arena.give(norm)
    if gated or fused:
        inner = walk.numbers(width)
        arena.give(*reversed(read))
    else:
        inner = read[0]
    down = walk.numbers(walk.facts.n_embd)
    arena.give(inner)
    return down


def _experts(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    arena, shape = walk.arena, layer.shape
    used, inner = shape.n_expert_used, shape.ff_expert
    probs = walk.numbers(shape.n_expert)
    chosen = walk.numbers(shape.n_expert)
    weights = walk.numbers(used)
    arena.give(probs)
    up = walk.numbers(used * inner)
    gate = walk.numbers(used * inner)
    if not shape.ff_shared:
        arena.give(norm)
    act = walk.numbers(used * inner)
    arena.give(gate, up)
    down = walk.numbers(used * walk.facts.n_embd)
    arena.give(act, chosen, weights)
    out = walk.numbers(walk.facts.n_embd)
    arena.give(down)
    if shape.ff_shared:
        arena.give(_feed_forward(walk, shape.ff_shared, norm, gated=True, fused=False))
    return out


def _state_space(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Mamba: projection, convolution over past inputs, selective scan, gate (src/models/mamba-base.cpp)."""
    arena, mixer = walk.arena, layer.shape.mixer
    width = mixer.inner + mixer.grouped
    past = walk.states((mixer.kernel - 1) * width)
    projected = walk.numbers(mixer.projected)
    arena.give(norm)
    joined = walk.states((mixer.kernel - 1) * width, width)
    arena.give(past)
    conv = walk.numbers(width)
    arena.give(joined)
    selective = walk.numbers(mixer.selective)
    step = walk.numbers(mixer.inner if mixer.selective else mixer.heads)
    scan = walk.states(layer.state, mixer.inner)
    arena.give(selective, step)
    gate = walk.numbers(mixer.inner)
    arena.give(projected)
    skipped = walk.numbers(mixer.inner)
    arena.give(conv, scan)
    out = walk.numbers(mixer.inner)
    arena.give(gate, skipped)
    back = walk.numbers(walk.facts.n_embd)
    arena.give(out)
    return back


def _short_convolution(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Gated convolution over a few tokens (src/models/lfm2.cpp)."""
    arena, n_embd = walk.arena, walk.facts.n_embd
    projected = walk.numbers(3 * n_embd)
    arena.give(norm)
    past, gated = walk.states(layer.state), walk.numbers(n_embd)
    joined = walk.states(layer.state, n_embd)
    arena.give(past, gated)
    conv = walk.numbers(n_embd)
    arena.give(joined, projected)
    back = walk.numbers(n_embd)
    arena.give(conv)
    return back


def _plain_mixer(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Any other recurrent layer, roughly: projection, convolution, scan, projection back."""
    arena = walk.arena
    width = max(layer.shape.mixer.projected, 2 * walk.facts.n_embd)
    projected = walk.numbers(width)
    arena.give(norm)
    conv, scan = walk.numbers(width), walk.numbers(width)
    state = walk.states(layer.state)
    arena.give(conv, projected)
    back = walk.numbers(walk.facts.n_embd)
    arena.give(scan, state)
    return back


_MIXERS = {"state_space": _state_space, "short_convolution": _short_convolution}
