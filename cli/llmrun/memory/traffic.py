"""What a decode step reads from memory, which is what bounds its rate.

A step multiplies one vector with every weight matrix, so each active weight is read once and used for two
operations: far fewer than a processor could do in that time (Williams, Waterman, Patterson: Roofline, 2009).
Active are all weights but the rows of the input embedding that other tokens would look up, and of a layer's
experts only those the router picks. To these come the keys and values of every position the token attends to,
and recurrent state whole.

With several sequences a step, weights are read once for all of them. Experts are then picked by each; a share
of 1 - (1 - used/all)^n of them is hit if the picks are independent.
"""

from __future__ import annotations

from llmrun.gguf.hparams import MemoryFacts
from llmrun.gguf.weights import INPUT_SLOT
from llmrun.memory.cache import F32_BYTES, position_bytes
from llmrun.memory.plan import MemoryPlan

_EMBEDDING = "token_embd.weight"


def active_weight_bytes(facts: MemoryFacts, n_seq: int = 1) -> float:
    """Bytes of the weights that a step of `n_seq` sequences reads."""
    total = 0.0
    for weight in facts.weights:
        if weight.slot == INPUT_SLOT and not (facts.tied and weight.name == _EMBEDDING):
            continue
        shape = facts.layers[weight.slot].shape if 0 <= weight.slot < len(facts.layers) else None
        share = 1.0
        if weight.expert and shape is not None and shape.n_expert:
            share = 1 - (1 - min(1.0, shape.n_expert_used / shape.n_expert)) ** n_seq
        total += weight.size_bytes * share
    return total


def context_bytes(facts: MemoryFacts, plan: MemoryPlan, depth: float) -> float:
    """Bytes of keys, values and state that a token reads at `depth` tokens of context; windows end there."""
    total = 0.0
    for layer in facts.layers:
        positions = min(depth, facts.n_swa) if layer.windowed and facts.n_swa else depth
        total += positions * position_bytes(facts, layer, plan) + F32_BYTES * layer.state
    return total


def step_bytes(facts: MemoryFacts, plan: MemoryPlan, depth: float, n_seq: int = 1) -> float:
    """All bytes a decode step of `n_seq` sequences reads, each at `depth` tokens of context."""
    return active_weight_bytes(facts, n_seq) + n_seq * context_bytes(facts, plan, depth)
