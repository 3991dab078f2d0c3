"""What lies on another device than the layer it belongs to, and who computes with it.

From 32 tokens on, the first GPU that can takes over what the CPU's weights are for: each weight is copied to
it and gives its place to the next one, K/V of the CPU's layers likewise. (This program asks the engine for it
only where a GPU has layers.) Other devices, RPC servers, leave such work to the CPU, which computes the
experts of their layers and hands the result back. Source: ggml_backend_sched_backend_id_from_cur and passes
2 and 5 of ggml_backend_sched_split_graph in ggml/src/ggml-backend.cpp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llmrun.gguf.hparams import MemoryFacts
from llmrun.gguf.weights import INPUT_SLOT, Weight
from llmrun.memory.cache import Cells
from llmrun.memory.placement import PlacedWeight, Placement
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.memory.walk import TakenOver

_OFFLOAD_BATCH = 32
_BETWEEN = ("attn_sinks", "attn_q_norm", "attn_q.bias")  # small, but work on the query waits for them
_GATES = {"ffn_gate", "ffn_gate_exps"}
_INNER = ("ffn_up", "ffn_gate", "ffn_down")


@dataclass(frozen=True, slots=True)
class Apart:
    """What lies apart, by layer.

    `borrower`: the GPU that computes with the CPU's weights, 0 where the CPU does. `borrowed`: sizes of those
    weights by name. `feeds`: layers whose experts or dense inner layer the CPU or the borrower computes for
    another GPU. `loans`: numbers a token that single matrices on the CPU read and give, by layer. `caches`:
    layers whose K/V lie elsewhere than where attention runs. `taken_over`: what the CPU does of attention in
    layers of GPUs. `unmodelled`: what the walk does not follow, empty where it does.
    """

    borrower: int = 0
    borrowed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    feeds: frozenset[int] = frozenset()
    loans: Mapping[int, int] = field(default_factory=dict)
    caches: frozenset[int] = frozenset()
    taken_over: Mapping[int, TakenOver] = field(default_factory=dict)
    unmodelled: str = ""

    def pauses(self, il: int) -> bool:
        """Whether a GPU waits for something in the middle of layer `il`: a result or a weight."""
        return il in self.feeds or il in self.borrowed

    def lends_attention(self, il: int) -> bool:
        """Whether weights of its attention are borrowed, which then bring the small inputs with them."""
        return any(name.startswith("attn") for name in self.borrowed.get(il, ()))


def apart_of(
    facts: MemoryFacts,
    plan: MemoryPlan,
    cells: Cells,
    placement: Placement,
    weights: Sequence[PlacedWeight],
) -> Apart:
    """What the placement puts apart."""
    if not placement.gpu_layers:
        return Apart(unmodelled=_where_apart(placed.weight.name for placed in weights if placed.device))
    moved: dict[int, list[PlacedWeight]] = defaultdict(list)
    lent: dict[int, dict[str, int]] = defaultdict(dict)
    for placed in weights:
        slot = placed.weight.slot
        if placed.weight.spread or not 0 <= slot < len(facts.layers):
            continue
        if placed.weight.matrix and placed.device != placement.layer(slot):
            moved[slot].append(placed)
        if placed.device == 0:
            name = _short(placed.weight)
            if placed.weight.matrix or name in _BETWEEN:
                lent[slot][name] = placed.weight.size_bytes
    borrower = _borrower(placement.devices, cells) if lent else 0
    layers = range(len(facts.layers))
    fed = {il for il, away in moved.items() if _is_fed(facts, il, away, weights)}
    return Apart(
        borrower=borrower,
        borrowed=lent if borrower else {},
        feeds=frozenset(il for il in fed if placement.layer(il) != borrower),
        loans={} if borrower else {il: _loan(facts, il, moved[il]) for il in moved if il not in fed},
        caches=frozenset(
            il
            for il in layers
            if (placement.layer(il) or borrower) != (placement.layer(il) if plan.offload_kqv else 0)
        ),
        taken_over=_taken_over(facts, plan),
        unmodelled=_unmodelled(placement, moved, fed, borrower, weights),
    )


def _taken_over(facts: MemoryFacts, plan: MemoryPlan) -> dict[int, TakenOver]:
    """What the CPU does where K/V stay with it and flash attention is off: it is given the result by hand.

    The scores before that follow, unless a weight in between, sinks or what opens latent rows, keeps them on
    the layer's device. Source: build_attn_mha in src/llama-graph.cpp.
    """
    if plan.offload_kqv or plan.flash_attn == "on":
        return {}
    with_sinks = {weight.slot for weight in facts.weights if _short(weight) == "attn_sinks"}
    return {
        il: "result" if facts.mla or il in with_sinks else "attention"
        for il, layer in enumerate(facts.layers)
        if layer.heads
    }


def _short(weight: Weight) -> str:
    """The name within its layer: "ffn_up" of "blk.7.ffn_up.weight", "ffn_up.bias" of its bias."""
    return weight.name.split(".", 2)[-1].removesuffix(".weight")


def _borrower(devices: Sequence[DeviceInfo], cells: Cells) -> int:
    if cells.n_ubatch < _OFFLOAD_BATCH:
        return 0
    return next((i for i, d in enumerate(devices) if i and not d.name.startswith("RPC")), 0)


def _unmodelled(
    placement: Placement,
    moved: Mapping[int, Sequence[PlacedWeight]],
    fed: Collection[int],
    borrower: int,
    weights: Sequence[PlacedWeight],
) -> str:
    """What makes compute buffers off by more than a tenth: layers torn apart otherwise, inputs on a GPU."""
    for il, away in sorted(moved.items()):
        if borrower and all(placed.device == 0 for placed in away):
            continue
        if il not in fed or not placement.layer(il):
            return _where_apart(placed.weight.name for placed in away)
    return _where_apart(_read_elsewhere(weights))


def _read_elsewhere(weights: Sequence[PlacedWeight]) -> set[str]:
    """Input matrices that the CPU does not have."""
    inputs = [placed for placed in weights if placed.weight.slot == INPUT_SLOT and placed.weight.matrix]
    here = {placed.weight.name for placed in inputs if placed.device == 0}
    return {placed.weight.name for placed in inputs} - here


def _where_apart(names: Iterable[str]) -> str:
    name = min(names, default="")
    return f"compute buffers where {name} lies apart from its layer" if name else ""


def _loan(facts: MemoryFacts, il: int, away: Sequence[PlacedWeight]) -> int:
    """What single matrices on the CPU read and give, as if all of it was there at once."""
    used, total = facts.layers[il].shape.n_expert_used, 0
    for weight in (placed.weight for placed in away if placed.device == 0):
        read, given = weight.widths
        many = used if weight.expert else 1
        total += given * many + read * (many if "down" in weight.name else 1)
    return total


def _is_fed(
    facts: MemoryFacts, il: int, away: Sequence[PlacedWeight], weights: Sequence[PlacedWeight]
) -> bool:
    """Whether the CPU has all of a layer's experts or dense inner layer, or all but the gate, and no more.

    A gate comes before the rest, and its product goes to the CPU with what that reads.
    """
    inner = {
        placed.weight.name
        for placed in weights
        if placed.weight.slot == il and placed.weight.matrix and _is_inner(facts, il, placed.weight)
    }
    names = {placed.weight.name for placed in away}
    missing = {name.split(".")[2] for name in inner - names}
    return names <= inner and missing <= _GATES and not any(placed.device for placed in away)


def _is_inner(facts: MemoryFacts, il: int, weight: Weight) -> bool:
    if facts.layers[il].shape.n_expert:
        return weight.expert
    return _short(weight) in _INNER
