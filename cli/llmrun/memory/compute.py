"""The compute buffer: what the engine reserves for the intermediate results of one micro-batch.

It is the peak of a walk through the graph with the engine's own way of placing tensors (`arena.py`). The
walk knows the big tensors of each kind of layer: projections, attention with and without flash attention,
gated and expert feed-forward, latent attention, recurrent mixers. Scores of attention without flash
attention (cells x heads x micro-batch) and the mask (cells x micro-batch) grow with the context; the rest
does not. Only as many rows reach the output as logits are asked for. Source of the graphs: llama.cpp,
src/llama-graph.cpp and src/models/*.cpp. An estimate: dense, sliding-window and expert models come out
within a few percent of the engine, recurrent ones less closely.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells
from llmrun.memory.placement import PlacedWeight, Placement
from llmrun.memory.plan import DeviceInfo, MemoryPlan

_MASK_BYTES = {"on": 2, "off": 4}
_INDEX_BYTES = 8
_OFFLOAD_BATCH = 32  # from this many tokens on a GPU multiplies with weights that lie on the CPU


@dataclass(slots=True)
class _Walk:
    """The state of a walk through the layers on one device."""

    facts: MemoryFacts
    plan: MemoryPlan
    cells: Cells
    arena: Arena
    tokens: int

    def numbers(self, width: int) -> Block:
        """A tensor of `width` f32 numbers a token."""
        return self.arena.take(F32_BYTES * width * self.tokens)


def _inputs(walk: _Walk, *, first: bool, windowed: bool, full: bool) -> list[Block]:
    """Token ids, positions, embeddings, masks and cache indices; they stay to the end."""
    arena, cells, tokens = walk.arena, walk.cells, walk.tokens
    held = [arena.take(F32_BYTES * tokens) for _ in range(2)]
    if first:
        held.append(walk.numbers(walk.facts.n_embd))
    v_rows = 1 if walk.plan.flash_attn == "on" else max(1, walk.facts.v_padded)
    for wanted, kept in ((full, cells.full), (windowed, cells.window)):
        if not wanted:
            continue
        held += [arena.take(_INDEX_BYTES * tokens), arena.take(_INDEX_BYTES * tokens * v_rows)]
        held.append(arena.take(_MASK_BYTES[walk.plan.flash_attn] * kept * tokens))
    return held


def _scores(walk: _Walk, layer: LayerFacts, query: Block, out_width: int) -> Block:
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


def _rotated(walk: _Walk, width: int) -> Block:
    """A projection and its rotated copy; the projection is a view by then and cannot be overwritten."""
    plain = walk.numbers(width)
    rotated = walk.numbers(width)
    walk.arena.give(plain)
    return rotated


def _attention(walk: _Walk, layer: LayerFacts, norm: Block) -> Block:
    arena = walk.arena
    q_width, out_width = layer.heads * layer.head_k, layer.heads * layer.head_v
    k_width, v_width = layer.kv_heads * layer.head_k, layer.kv_heads * layer.head_v
    if layer.shape.qkv_fused:
        fused = walk.numbers(q_width + k_width + v_width)
        arena.give(norm)
        query, key = walk.numbers(q_width), walk.numbers(k_width)
        arena.give(key, fused)
    else:
        query = _rotated(walk, q_width)
        if layer.k_width:
            value = walk.numbers(v_width)
            plain = walk.numbers(k_width)
            arena.give(norm)
            key = walk.numbers(k_width)
            arena.give(plain, key, value)
        else:
            arena.give(norm)
    out = _scores(walk, layer, query, out_width)
    projected = walk.numbers(walk.facts.n_embd)
    arena.give(out)
    return projected


def _gated(walk: _Walk, width: int, *, gated: bool, fused: bool, norm: Block, last: bool) -> Block:
    """A feed-forward network; `last`: nothing else reads its input."""
    arena = walk.arena
    up = walk.numbers(width)
    if gated:
        gate = walk.numbers(width)
        if last:
            arena.give(norm)
        inner = walk.numbers(width)
        arena.give(gate, up)
    elif fused:
        if last:
            arena.give(norm)
        inner = walk.numbers(width // 2)
        arena.give(up)
    else:
        if last:
            arena.give(norm)
        inner = up
    down = walk.numbers(walk.facts.n_embd)
    arena.give(inner)
    return down


def _experts(walk: _Walk, layer: LayerFacts, norm: Block) -> Block:
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
        shared = _gated(walk, shape.ff_shared, gated=True, fused=False, norm=norm, last=True)
        arena.give(shared)
    return out


def _layer(walk: _Walk, layer: LayerFacts, residual: Block) -> Block:
    """One layer; returns what the next one reads."""
    arena, facts = walk.arena, walk.facts
    norm = walk.numbers(facts.n_embd)
    if layer.state:
        mixed = _mixer(walk, layer, norm)
    elif layer.heads:
        mixed = _latent(walk, layer, norm) if facts.mla else _attention(walk, layer, norm)
    else:
        mixed = norm
    arena.give(residual)
    shape = layer.shape
    if not shape.ff and not shape.n_expert:
        return mixed
    norm = walk.numbers(facts.n_embd)
    if shape.n_expert:
        out = _experts(walk, layer, norm)
    else:
        fused = not shape.gated and shape.ff_fused
        out = _gated(walk, shape.ff, gated=shape.gated, fused=fused, norm=norm, last=True)
    arena.give(mixed)
    return out


def _mixer(walk: _Walk, layer: LayerFacts, norm: Block) -> Block:
    """A recurrent layer: projection, convolution over it, scan, projection back."""
    arena = walk.arena
    width = max(layer.shape.mixer, 2 * walk.facts.n_embd)
    projected = walk.numbers(width)
    arena.give(norm)
    conv = walk.numbers(width)
    scan = walk.numbers(width)
    state = arena.take(F32_BYTES * layer.state * max(1, walk.plan.n_seq))
    arena.give(conv, projected)
    out = walk.numbers(walk.facts.n_embd)
    arena.give(scan, state)
    return out


def _latent(walk: _Walk, layer: LayerFacts, norm: Block) -> Block:
    """Attention over latent rows: queries are brought into the latent space, results out of it again."""
    arena = walk.arena
    latent = layer.head_k
    query = walk.numbers(layer.heads * latent)
    row = walk.numbers(latent)
    absorbed = walk.numbers(layer.heads * latent)
    arena.give(norm, query, row)
    out = _scores(walk, layer, absorbed, layer.heads * latent)
    opened = walk.numbers(layer.heads * layer.head_v)
    arena.give(out)
    projected = walk.numbers(walk.facts.n_embd)
    arena.give(opened)
    return projected


def _layer_kinds(facts: MemoryFacts, placement: Placement, device: int) -> list[LayerFacts]:
    """One layer of each kind the device has, in order, and the pairs in which they follow each other."""
    return [layer for il, layer in enumerate(facts.layers) if placement.layer(il) == device]


def compute_bytes(
    facts: MemoryFacts,
    plan: MemoryPlan,
    cells: Cells,
    placement: Placement,
    weights: tuple[PlacedWeight, ...],
) -> list[int]:
    """Compute buffer of each device of the placement."""
    return [
        _device_bytes(facts, plan, cells, placement, weights, device)
        for device in range(len(placement.devices))
    ]


def _device_bytes(
    facts: MemoryFacts,
    plan: MemoryPlan,
    cells: Cells,
    placement: Placement,
    weights: tuple[PlacedWeight, ...],
    device: int,
) -> int:
    info: DeviceInfo = placement.devices[device]
    kinds = _layer_kinds(facts, placement, device)
    if device and not kinds and placement.output != device:
        return 0
    arena = Arena(32 if device == 0 else 128)
    walk = _Walk(facts, plan, cells, arena, cells.n_ubatch)
    windowed = any(layer.windowed for layer in facts.layers)
    full = any(layer.k_width and not layer.windowed for layer in facts.layers)
    held = _inputs(walk, first=device == 0, windowed=windowed, full=full)
    residual = walk.numbers(facts.n_embd)
    for layer in kinds:
        residual = _layer(walk, layer, residual)
    arena.give(residual, *held)
    rows = max(1, plan.n_seq)
    if placement.output == device:
        arena.give(arena.take(F32_BYTES * rows * facts.n_embd), arena.take(F32_BYTES * rows * facts.n_vocab))
    return arena.peak_bytes + _borrowed(info, cells, placement, weights, device)


def _borrowed(
    info: DeviceInfo, cells: Cells, placement: Placement, weights: tuple[PlacedWeight, ...], device: int
) -> int:
    """Room for one weight at a time that lies on the CPU while a GPU multiplies with it (op_offload)."""
    if device != 1 or info.name.startswith("RPC") or cells.n_ubatch < _OFFLOAD_BATCH:
        return 0
    on_host = (
        p.weight.size_bytes
        for p in weights
        if p.device == 0 and p.weight.matrix and 0 <= p.weight.slot < len(placement.slots) - 1
    )
    return max(on_host, default=0)
