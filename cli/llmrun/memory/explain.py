"""The size of the K/V cache step by step: the textbook's formula, then every correction the model needs.

Each step states one rule in words and the size after it, so that the last one is what the engine reserves.
Steps that change nothing are left out.
"""

from __future__ import annotations

from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.memory.cache import (
    CELL_STEP,
    Cells,
    cells_of,
    layer_kv_bytes,
    layer_state_bytes,
    position_bytes,
    row_bytes,
)
from llmrun.memory.plan import MemoryPlan
from llmrun.reports.vram import ExplainedStep

_F16_BYTES = 2


def _plural(count: int, noun: str, verb: str = "") -> str:
    """A count with its noun and, where one is given in its plural, the verb."""
    words = [f"{count:,}", noun if count == 1 else f"{noun}s"]
    if verb:
        words.append(f"{verb}s" if count == 1 else verb)
    return " ".join(words)


class _Steps:
    def __init__(self) -> None:
        self.steps: list[ExplainedStep] = []

    def add(self, text: str, total_bytes: int) -> None:
        """Note a step unless it changes nothing."""
        if not self.steps or self.steps[-1].total_bytes != total_bytes:
            self.steps.append(ExplainedStep(text, total_bytes))


def explain(facts: MemoryFacts, plan: MemoryPlan) -> tuple[ExplainedStep, ...]:
    """The steps from the textbook's size to K/V cache and recurrent state as they are reserved."""
    steps, cells = _Steps(), cells_of(facts, plan)
    tokens = plan.n_ctx or facts.n_ctx_train
    attending = [layer for layer in facts.layers if layer.k_width]
    heads = max((layer.kv_heads for layer in facts.layers), default=0)
    size = next((layer.head_k for layer in attending if not layer.windowed), 0) or max(
        (layer.head_k for layer in facts.layers), default=0
    )
    n_all = facts.n_layer_all
    steps.add(
        f"Textbook: 2 (K and V) x {_plural(n_all, 'layer')} x {_plural(heads, 'KV head')}"
        f" x {size} numbers a head x {_F16_BYTES} bytes x {_plural(tokens, 'token')}",
        2 * n_all * heads * size * _F16_BYTES * tokens,
    )
    per_layer = row_bytes(plan.type_k, heads * size) + row_bytes(plan.type_v, heads * size)
    steps.add(
        f"K is stored as {plan.type_k}, V as {plan.type_v}: {per_layer:,} bytes a token and layer",
        n_all * per_layer * tokens,
    )
    room = cells.full * cells.n_stream
    steps.add(_cells_text(cells, tokens), n_all * per_layer * room)
    n_trunk = len(facts.layers)
    steps.add(
        f"{_plural(n_all - n_trunk, 'layer')} for the prediction of further tokens, without a cache here",
        n_trunk * per_layer * room,
    )
    steps.add(_attending_text(facts, len(attending)), len(attending) * per_layer * room)
    _widths(steps, facts, plan, attending, room)
    windowed = sum(1 for layer in attending if layer.windowed)
    steps.add(
        f"{_plural(windowed, 'layer', 'keep')} {cells.window:,} cells, for a window of"
        f" {_plural(facts.n_swa, 'token')}: the window and the {cells.n_ubatch:,} tokens evaluated at once,"
        f" in steps of {CELL_STEP}",
        kv := sum(layer_kv_bytes(facts, layer, plan, cells) for layer in facts.layers),
    )
    states = [layer for layer in facts.layers if layer.state]
    each = sum(4 * layer.state for layer in states)
    steps.add(
        f"{_plural(len(states), 'layer', 'keep')} a recurrent state: {each:,} bytes a sequence,"
        f" whatever its length, for {_plural(max(1, plan.n_seq), 'sequence')}",
        kv + sum(layer_state_bytes(layer, plan) for layer in facts.layers),
    )
    return tuple(steps.steps)


def _cells_text(cells: Cells, tokens: int) -> str:
    if cells.n_stream == 1:
        return f"Cells come in steps of {CELL_STEP}: {cells.full:,} for {_plural(tokens, 'token')}"
    return (
        f"{_plural(cells.n_stream, 'sequence')} have {cells.full:,} cells each, in steps of {CELL_STEP}:"
        f" {cells.full * cells.n_stream:,} in all"
    )


def _attending_text(facts: MemoryFacts, count: int) -> str:
    states = sum(1 for layer in facts.layers if layer.state and not layer.k_width)
    if states:
        n_states = _plural(states, "layer", "keep")
        return f"Attention in {count} of {len(facts.layers)} layers; {n_states} a state of fixed size instead"
    return f"K and V in {count} of {len(facts.layers)} layers; the others read theirs or have none"


def _widths(
    steps: _Steps, facts: MemoryFacts, plan: MemoryPlan, attending: list[LayerFacts], room: int
) -> None:
    def total(v_padded: bool, indexed: bool) -> int:
        per_token = 0
        for layer in attending:
            v_width = facts.v_padded if v_padded and layer.v_width else layer.v_width
            per_token += row_bytes(plan.type_k, layer.k_width) + row_bytes(plan.type_v, v_width)
            if indexed:
                per_token += row_bytes(plan.type_k, layer.index_k) + row_bytes(plan.type_v, layer.index_v)
        return per_token * room

    if facts.mla and attending:
        steps.add(
            f"K and V share one latent row of {attending[0].k_width:,} numbers a token and layer",
            total(False, False),
        )
    steps.add("KV heads and head sizes differ from layer to layer", total(False, False))
    steps.add(
        f"Without flash attention V is padded to the widest layer's {facts.v_padded:,} numbers",
        total(plan.flash_attn == "off", False),
    )
    steps.add(
        "Sparse attention keeps the keys of an indexer as well",
        sum(position_bytes(facts, layer, plan) for layer in attending) * room,
    )
