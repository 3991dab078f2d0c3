"""The compute buffer: what the engine reserves for the intermediate results of one micro-batch.

It is the peak of a walk through the graph (`graph.py`) with the engine's own way of placing tensors
(`arena.py`). Scores of attention without flash attention (cells x heads x micro-batch) and the mask (cells x
micro-batch) grow with the context; the rest does not. Only as many rows reach the output as logits are
asked for. Several GPUs that hold all layers work as a pipeline, with copies of what they pass on. An
estimate: dense, sliding-window, expert and latent models come out within a few percent of the engine,
recurrent ones less closely. Sources: sched_reserve in src/llama-context.cpp, ggml/src/ggml-alloc.c,
ggml_backend_sched_split_graph in ggml/src/ggml-backend.cpp.
"""

from __future__ import annotations

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells
from llmrun.memory.graph import TURNED_HEAD_STEP, Walk, is_turned, walk_layer, walk_streams
from llmrun.memory.placement import PlacedWeight, Placement
from llmrun.memory.plan import MemoryPlan

_MASK_BYTES = {"on": 2, "off": 4}
_INDEX_BYTES = 8
_OFFLOAD_BATCH = 32  # from this many tokens on a GPU multiplies with weights that lie on the CPU
_HOST_ALIGNMENT, _GPU_ALIGNMENT = 32, 128
# Their last layer runs on all tokens, not on those with logits alone (embeddings_nextn_masked, src/models).
_WHOLE_LAST_LAYER = frozenset(
    {
        "bailingmoe3", "cohere2moe", "gemma4", "gpt-oss", "hy_v3", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
_COPIES = 4  # GGML_SCHED_MAX_COPIES


def compute_bytes(
    facts: MemoryFacts,
    plan: MemoryPlan,
    cells: Cells,
    placement: Placement,
    weights: tuple[PlacedWeight, ...],
) -> list[int]:
    """Compute buffer of each device of the placement."""
    found = []
    for device in range(len(placement.devices)):
        mine = [il for il in range(len(facts.layers)) if placement.layer(il) == device]
        if device and not mine and placement.output != device:
            found.append(0)
            continue
        arena = Arena(_GPU_ALIGNMENT if device else _HOST_ALIGNMENT)
        walk = Walk(facts, plan, cells, arena, cells.n_ubatch + -cells.n_ubatch % max(1, plan.n_seq))
        copies = _COPIES if placement.pipelined else 1
        peak = _peak_bytes(walk, mine, copies, first=device == 0, output=placement.output == device)
        found.append(peak + (_borrowed_bytes(cells, placement, weights) if device == 1 else 0))
    return found


def _peak_bytes(walk: Walk, mine: list[int], copies: int, *, first: bool, output: bool) -> int:
    """Peak of the part of the graph with the layers `mine`; `first`: inputs, `output`: logits.

    A pipeline has `copies` of all that a part reads from outside and keeps them to the end, what the layers
    before have computed included.
    """
    arena, facts = walk.arena, walk.facts
    logits = F32_BYTES * max(1, walk.plan.n_seq) * (facts.n_embd + facts.n_vocab)
    if not mine and not first:
        return logits
    held = _take_inputs(walk, copies, first=first)
    if copies > 1 and not first:
        held += [walk.numbers(facts.streams * facts.n_embd) for _ in range(copies)]
    residual = _embeddings(walk, held, copies)
    last_of = {facts.layers[il].windowed: il for il in mine if facts.layers[il].heads} if copies == 1 else {}
    for il in mine:
        layer = facts.layers[il]
        if facts.streams > 1:
            residual = walk_streams(walk, layer, residual)
        else:
            mask_done = last_of.get(layer.windowed) == il
            last = il == len(facts.layers) - 1 and facts.arch not in _WHOLE_LAST_LAYER
            residual = walk_layer(walk, layer, residual, last=last, mask_done=mask_done)
    arena.give(residual, *held, *(block for blocks in walk.masks.values() for block in blocks))
    if output:
        arena.take(logits)
    return arena.peak_bytes


def _take_inputs(walk: Walk, copies: int, *, first: bool) -> list[Block]:
    """Token ids, positions, embeddings: held to the end. Masks and indices: while a layer needs them."""
    arena, cells, tokens = walk.arena, walk.cells, walk.tokens
    held = [arena.take(F32_BYTES * tokens) for _ in range(2 * copies)]
    if first:
        held += [walk.numbers(walk.facts.n_embd) for _ in range(copies)]
    v_rows = 1 if walk.plan.flash_attn == "on" else max(1, walk.facts.v_padded)
    for windowed, kept in ((False, cells.full), (True, cells.window)):
        if any(layer.k_width and layer.windowed == windowed for layer in walk.facts.layers):
            sizes = (
                _INDEX_BYTES * tokens,
                _INDEX_BYTES * tokens * v_rows,
                _MASK_BYTES[walk.plan.flash_attn] * kept * tokens,
                *_turning_matrices(walk, windowed),
            )
            walk.masks[windowed] = [arena.take(size) for size in sizes for _ in range(copies)]
    return held


def _turning_matrices(walk: Walk, windowed: bool) -> list[int]:
    """Bytes of matrices that turn the rows of quantized caches: for K the largest power of two in a head,
    for V 64."""
    layer = next(la for la in walk.facts.layers if la.k_width and la.windowed == windowed)
    sizes = []
    if is_turned(walk.plan.type_k, layer.head_k):
        sizes.append(layer.head_k & -layer.head_k)
    if is_turned(walk.plan.type_v, layer.head_v):
        sizes.append(TURNED_HEAD_STEP)
    return [F32_BYTES * size * size for size in sizes]


def _embeddings(walk: Walk, held: list[Block], copies: int) -> Block:
    """What the first layer reads. Inputs of every single layer, where a model has them, join `held`."""
    arena, facts = walk.arena, walk.facts
    if not facts.per_layer_width:
        return walk.numbers(facts.n_embd)
    rows = walk.numbers(facts.per_layer_width)
    scaled = walk.numbers(facts.per_layer_width)
    arena.give(rows)
    residual = walk.numbers(facts.n_embd)
    projected = walk.numbers(facts.per_layer_width)
    normed = walk.numbers(facts.per_layer_width)
    arena.give(projected, scaled)
    held += [walk.numbers(facts.per_layer_width) for _ in range(copies)]
    arena.give(normed)
    if facts.streams > 1:
        repeated = walk.numbers(facts.streams * facts.n_embd)
        joined = walk.numbers(facts.streams * facts.n_embd)
        arena.give(repeated, residual)
        return joined
    return residual


def _borrowed_bytes(cells: Cells, placement: Placement, weights: tuple[PlacedWeight, ...]) -> int:
    """Room for one weight at a time that lies on the CPU while the first GPU multiplies with it.

    Source: ggml_backend_sched_backend_id_from_cur with op_offload in ggml/src/ggml-backend.cpp. Servers do
    not take such work.
    """
    if placement.devices[1].name.startswith("RPC") or cells.n_ubatch < _OFFLOAD_BATCH:
        return 0
    n_layers = len(placement.slots) - 1
    on_host = (
        p.weight.size_bytes
        for p in weights
        if p.device == 0 and p.weight.matrix and 0 <= p.weight.slot < n_layers
    )
    return max(on_host, default=0)
