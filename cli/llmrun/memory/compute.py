"""The compute buffer: what the engine reserves for the intermediate results of one micro-batch.

It is the peak of a walk through the graph (`graph.py`) with the engine's own way of placing tensors
(`arena.py`). Scores of attention without flash attention (cells x heads x micro-batch) and the mask (cells x
micro-batch) grow with the context; the rest does not. Only as many rows reach the output as logits are
asked for. Several GPUs that hold all layers work as a pipeline, with copies of what they pass on. What lies
on another device than its layer is copied there and back (`apart.py`). An estimate: within a few percent of
the engine, recurrent models less closely. Sources: sched_reserve in src/llama-context.cpp,
ggml/src/ggml-alloc.c, ggml_backend_sched_split_graph in ggml/src/ggml-backend.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.apart import Apart
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells
from llmrun.memory.graph import attends, walk_layer, walk_streams
from llmrun.memory.placement import Placement
from llmrun.memory.plan import MemoryPlan
from llmrun.memory.walk import Masks, Walk

_HOST_ALIGNMENT, _GPU_ALIGNMENT = 32, 128
# Their last layer runs on all tokens, not on those with logits alone (embeddings_nextn_masked, src/models).
_WHOLE_LAST_LAYER = frozenset(
    {
        "bailingmoe3", "cohere2moe", "gemma4", "gpt-oss", "hy_v3", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
_LAST_PRODUCTS = ("ffn_down_shexp", "ffn_down_exps.bias", "ffn_down_exps", "ffn_down")
_COPIES = 4  # GGML_SCHED_MAX_COPIES


@dataclass(frozen=True, slots=True)
class _Part:
    """The layers that one device computes, `mine`, and the layer before whose last sums it makes, if any.

    `first`: it takes the inputs. `output`: it ends in logits. `serves`: other devices go on from it and may
    come back. `normed`: it goes on from a GPU that has normed its first input, as the one before does where
    the CPU has the first layers.
    """

    mine: list[int]
    before: int | None
    first: bool
    output: bool
    serves: bool
    normed: bool


def compute_bytes(
    facts: MemoryFacts,
    plan: MemoryPlan,
    cells: Cells,
    placement: Placement,
    apart: Apart,
) -> list[int]:
    """Compute buffer of each device of the placement."""
    tokens = cells.n_ubatch + -cells.n_ubatch % max(1, plan.n_seq)
    count = len(placement.devices)
    arenas = [Arena(_GPU_ALIGNMENT if device else _HOST_ALIGNMENT) for device in range(count)]
    parts = [_part(facts, placement, apart, device) for device in range(count)]
    lent: Masks = {}
    for device, part in enumerate(parts):
        if not (part.first or part.mine or part.output):
            continue
        walk = Walk(facts, plan, cells, arenas[device], tokens, _COPIES if placement.pipelined else 1)
        if device:
            later = _kinds(facts, (il for other in parts[device + 1 :] for il in other.mine))
            walk.host = arenas[0]
            walk.lent_masks = {key: lent.pop(key) for key in [*lent] if key[0] not in later}
        if device != apart.borrower:
            walk.helper = arenas[apart.borrower]
        _walk_part(walk, part, apart)
        if part.serves:
            lent = walk.masks
    return [arena.peak_bytes for arena in arenas]


def _part(facts: MemoryFacts, placement: Placement, apart: Apart, device: int) -> _Part:
    computed_by = [placement.layer(il) or apart.borrower for il in range(len(facts.layers))]
    mine = [il for il, by in enumerate(computed_by) if by == device]
    before = min(mine, default=len(computed_by)) - 1
    plain = facts.streams == 1 and not facts.per_layer_width
    on_gpu = before >= 0 and bool(computed_by[before])
    by_cpu = not on_gpu or _ends_on_cpu(facts, apart, before)
    return _Part(
        mine=mine,
        before=before if device and before >= 0 and by_cpu and plain else None,
        first=device == 0,
        output=placement.output == device,
        serves=device == 0 and len(mine) < len(computed_by),
        normed=on_gpu and not computed_by[0],
    )


def _ends_on_cpu(facts: MemoryFacts, apart: Apart, il: int) -> bool:
    """Whether the CPU computes the last product of a GPU's layer: a shared expert comes after the others."""
    return il in apart.feeds and not apart.borrower and not facts.layers[il].shape.ff_shared


def _walk_part(walk: Walk, part: _Part, apart: Apart) -> None:
    """The part of the graph on one device, from what it reads to what it passes on."""
    arena, facts = walk.arena, walk.facts
    rows = F32_BYTES * max(1, walk.plan.n_seq)
    if not part.mine and not part.first and part.before is None:
        arena.take(rows * (facts.n_embd + facts.n_vocab))
        return
    passed = [] if part.before is None else _passed_on(walk, part.before)
    plain = not part.first and walk.copies == 1 and not facts.per_layer_width
    copied = [walk.numbers(facts.n_embd)] if plain and not passed else []
    if copied and part.normed:
        passed = [*copied, walk.numbers(facts.n_embd)]
    held = _take_inputs(walk, part, apart)
    residual = _added_up(walk, passed) if passed else copied[0] if copied else _embeddings(walk, held)
    residual = _walk_layers(walk, part, apart, residual)
    if not part.mine and not part.first:
        arena.take(rows * facts.n_vocab)
        return
    arena.give(residual)
    if part.serves:
        return
    arena.give(*held, *walk.positions, *(block for blocks in walk.masks.values() for block in blocks))
    if part.output:
        arena.take(rows * (facts.n_embd + facts.n_vocab))


def _walk_layers(walk: Walk, part: _Part, apart: Apart, residual: Block) -> Block:
    """All layers of a part; returns what the last one leaves."""
    facts = walk.facts
    alone = walk.copies == 1 and not part.serves
    last_of = {facts.layers[il].windowed: il for il in part.mine if facts.layers[il].heads} if alone else {}
    for i, il in enumerate(part.mine):
        layer = facts.layers[il]
        walk.windowed = layer.windowed
        walk.borrowed = apart.borrowed.get(il, {})
        walk.cache_apart = il in apart.caches
        walk.taken_over = apart.taken_over.get(il, "")
        if walk.helper is not None and il in apart.loans:
            walk.helper.give(walk.helper.take(F32_BYTES * walk.tokens * apart.loans[il]))
        walk.outputs_with_cache = il in apart.caches and _outputs_follow(walk, apart, il)
        walk.last_of_kind = last_of.get(layer.windowed) == il
        walk.fed_by_helper = il in apart.feeds
        walk.last_borrowed = next((name for name in _LAST_PRODUCTS if name in walk.borrowed), "")
        _look_ahead(walk, part.mine[i + 1 :] if _stops(apart, il) else [], apart)
        if facts.streams > 1:
            residual = walk_streams(walk, layer, residual)
        else:
            residual = walk_layer(walk, layer, residual, last=_ends_in_outputs(facts, il))
    return residual


def _ends_in_outputs(facts: MemoryFacts, il: int) -> bool:
    """After the last layer's attention only positions with logits go on, in most models."""
    return il == len(facts.layers) - 1 and facts.arch not in _WHOLE_LAST_LAYER


def _passed_on(walk: Walk, before: int) -> list[Block]:
    """Copies of what the layer before has computed, the CPU at last; the sums after that are this device's.

    Source: pass 2 of ggml_backend_sched_split_graph.
    """
    n_embd, shape = walk.facts.n_embd, walk.facts.layers[before].shape
    if _ends_in_outputs(walk.facts, before):
        walk.tokens = min(walk.tokens, max(1, walk.plan.n_seq))
    if shape.n_expert and not shape.ff_shared:
        used = shape.n_expert_used
        return [walk.numbers(width) for width in (used * n_embd, used, n_embd)]
    if shape.n_expert and shape.shared_gate:
        gate, shared, *added = [walk.numbers(width) for width in (1, n_embd, n_embd, n_embd)]
        return [*added, gate, shared]
    return [walk.numbers(n_embd) for _ in range(3 if shape.n_expert else 2)]


def _added_up(walk: Walk, passed: list[Block]) -> Block:
    total = walk.numbers(walk.facts.n_embd) if passed[0][1] > passed[1][1] else passed.pop(0)
    walk.arena.give(*passed)
    return total


def _take_inputs(walk: Walk, part: _Part, apart: Apart) -> list[Block]:
    """Token ids, positions, embeddings: held to the end. Masks and indices: while a layer needs them.

    A pipeline has copies of all that a part reads from outside and keeps them to the end, what the layers
    before have computed included.
    """
    if not part.mine and not part.first:
        return []
    facts = walk.facts
    if part.first or not apart.lends_attention(part.mine[0]):
        walk.take_positions(2 if part.first else 1)
    held: list[Block] = []
    if part.first:
        held += [walk.numbers(facts.n_embd) for _ in range(walk.copies)]
    _look_ahead(walk, range(len(facts.layers)) if part.first else part.mine, Apart() if part.first else apart)
    walk.take_coming()
    if walk.copies > 1 and not part.first:
        held += [walk.numbers(facts.streams * facts.n_embd) for _ in range(walk.copies)]
    return held


def _kinds(facts: MemoryFacts, layers: Iterable[int]) -> frozenset[bool]:
    """Kinds of attention of these layers: True for a window."""
    return frozenset(facts.layers[il].windowed for il in layers if attends(facts.layers[il]))


def _look_ahead(walk: Walk, layers: Sequence[int], apart: Apart) -> None:
    """Tell the walk of the first of `layers`, up to one with a pause; masks of caches apart come later."""
    stop = next((i for i, il in enumerate(layers) if _stops(apart, il)), len(layers))
    coming = layers[: stop + 1]
    walk.coming = _kinds(walk.facts, (il for il in coming if il not in apart.caches))
    turning = (il for il in coming if il in apart.caches and not apart.lends_attention(il))
    walk.turning_coming = _kinds(walk.facts, turning)
    walk.output_coming = any(
        il not in apart.caches and _outputs_follow(walk, apart, il) for il in coming[-1:]
    )


def _stops(apart: Apart, il: int) -> bool:
    """Whether a GPU waits in the middle of layer `il`, for its cache at least."""
    return apart.pauses(il) or il in apart.caches


def _outputs_follow(walk: Walk, apart: Apart, il: int) -> bool:
    """Whether attention of `il` is followed at once by the choice of positions that have logits."""
    return il == len(walk.facts.layers) - 1 and "attn_output" not in apart.borrowed.get(il, ())


def _embeddings(walk: Walk, held: list[Block]) -> Block:
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
    held += [walk.numbers(facts.per_layer_width) for _ in range(walk.copies)]
    arena.give(normed)
    if facts.streams > 1:
        repeated = walk.numbers(facts.streams * facts.n_embd)
        joined = walk.numbers(facts.streams * facts.n_embd)
        arena.give(repeated, residual)
        return joined
    return residual
