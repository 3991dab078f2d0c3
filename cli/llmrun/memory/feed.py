"""The inner layer after attention: dense, or the experts the router picks.

A GPU's layer may leave its experts (or its dense inner layer) to the CPU: the norm it reads is copied to the
CPU, the last product copied back, and the rest happens on the GPU. Source: build_ffn and build_moe_ffn in
src/llama-graph.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from llmrun.gguf.hparams import LayerFacts
from llmrun.gguf.weights import LayerShape
from llmrun.memory.arena import Arena, Block
from llmrun.memory.walk import Walk

_SOFTMAX_OF_PICKED = frozenset({"gpt-oss"})  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT


def walk_feed(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """What the inner layer adds to the residual; `norm` is what it reads."""
    shape = layer.shape
    if shape.n_expert:
        return _experts(walk, layer, norm)
    if walk.fed_by_helper and walk.helper is not None:
        there = _at_helper(walk, walk.helper)
        copy = there.numbers(walk.facts.n_embd)
        there.arena.give(_feed_forward(there, shape.ff, copy, gated=shape.gated, fused=shape.ff_fused))
        walk.arena.give(norm)
        return _handed_back(walk, walk.facts.n_embd)
    return _feed_forward(walk, shape.ff, norm, gated=shape.gated, fused=shape.ff_fused)


def _handed_back(walk: Walk, width: int) -> Block:
    """The helper's result here."""
    result = walk.numbers(width)
    walk.take_coming()
    return result


def _at_helper(walk: Walk, arena: Arena) -> Walk:
    return replace(walk, arena=arena, helper=None, fed_by_helper=False)


def _feed_forward(
    walk: Walk, width: int, *last_read: Block, gated: bool, fused: bool, ending: str = ""
) -> Block:
    """Inner layer, gate beside it or in one matrix with it, and back; nothing reads `last_read` after it."""
    arena = walk.arena
    read = [walk.product(f"ffn_up{ending}", 2 * width if fused else width)]
    if gated:
        read.append(walk.product(f"ffn_gate{ending}", width))
    arena.give(*last_read)
    if gated or fused:
        inner = walk.numbers(width)
        arena.give(*reversed(read))
    else:
        inner = read[0]
    down = walk.product(f"ffn_down{ending}", walk.facts.n_embd)
    arena.give(inner)
    return down


def _experts(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    arena, shape = walk.arena, layer.shape
    used = shape.n_expert_used
    probs = walk.numbers(shape.n_expert)
    chosen = walk.numbers(shape.n_expert)
    weights = _weights(walk, used, probs)
    after = () if shape.ff_shared else (norm,)
    if walk.fed_by_helper and walk.helper is not None:
        there = _at_helper(walk, walk.helper)
        copy, picked = there.numbers(walk.facts.n_embd), there.numbers(shape.n_expert)
        there.arena.give(_picked(there, layer, (copy,)), picked)
        arena.give(*after, chosen)
        down = _handed_back(walk, used * walk.facts.n_embd)
    else:
        down = _picked(walk, layer, after)
        arena.give(chosen)
    arena.give(weights)
    out = walk.numbers(walk.facts.n_embd)
    arena.give(down)
    if shape.ff_shared:
        arena.give(*_shared_experts(walk, shape, norm))
    return out


def _shared_experts(walk: Walk, shape: LayerShape, norm: Block) -> tuple[Block, ...]:
    """What every token's experts add, and the gate it is multiplied with where there is one."""
    read = () if shape.shared_gate else (norm,)
    down = _feed_forward(walk, shape.ff_shared, *read, gated=True, fused=False, ending="_shexp")
    return (down, walk.numbers(1), norm) if shape.shared_gate else (down,)


def _weights(walk: Walk, used: int, probs: Block) -> Block:
    """Weights of the experts that were picked, scaled to add up to one: small, but gaps depend on them."""
    arena = walk.arena
    plain = walk.numbers(used)
    arena.give(probs)
    sums = []
    if walk.facts.arch not in _SOFTMAX_OF_PICKED:
        sums = [walk.numbers(1), walk.numbers(1)]
        arena.give(sums[0])
    scaled = walk.numbers(used)
    arena.give(plain, *sums[1:])
    return scaled


def _picked(walk: Walk, layer: LayerFacts, read: tuple[Block, ...]) -> Block:
    """The products of the experts that were picked; `read` is not needed any more after the first ones."""
    arena, used, inner = walk.arena, layer.shape.n_expert_used, layer.shape.ff_expert
    if "ffn_gate_up_exps" in walk.borrowed:
        both = walk.product("ffn_gate_up_exps", 2 * used * inner)
        arena.give(*read)
        act = walk.numbers(used * inner)
        arena.give(both)
    else:
        up = walk.product("ffn_up_exps", used * inner)
        gate = walk.product("ffn_gate_exps", used * inner)
        arena.give(*read)
        act = walk.numbers(used * inner)
        arena.give(gate, up)
    down = walk.product("ffn_down_exps", used * walk.facts.n_embd)
    arena.give(act)
    return down
