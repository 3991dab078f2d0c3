"""What the K/V cache of a model takes as the context grows, in a number and a line."""

from __future__ import annotations

from llmrun.gguf.header import GgufHeader
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.memory.cache import bytes_per_token, layer_state_bytes, position_bytes
from llmrun.memory.plan import MemoryPlan
from llmrun.units import format_bytes, format_tokens


def kv_growth(header: GgufHeader) -> tuple[int | None, str]:
    """Bytes of one more position at f16 in layers that see the whole context; a line on what else is held.

    None where that cannot be told, with the reason. `header` is one that `check_runnable` passes.
    """
    facts = memory_facts(header)
    if facts.unmodelled:
        return None, facts.unmodelled
    if header.flag(f"{header.arch}.attention.causal") is False:
        return None, "it does not generate text"
    if not any(layer.k_width or layer.state for layer in facts.layers):
        return None, "the file does not describe its heads"
    plan = MemoryPlan()
    return bytes_per_token(facts, plan), "; ".join(filter(None, (_window(facts, plan), _state(facts, plan))))


def _window(facts: MemoryFacts, plan: MemoryPlan) -> str:
    sizes = [position_bytes(facts, layer, plan) for layer in facts.layers if layer.windowed and layer.k_width]
    if not sizes:
        return ""
    layers = "1 window layer adds" if len(sizes) == 1 else f"{len(sizes):,} window layers add"
    return f"{layers} {format_bytes(sum(sizes))} a token up to {format_tokens(facts.n_swa)}"


def _state(facts: MemoryFacts, plan: MemoryPlan) -> str:
    state = sum(layer_state_bytes(layer, plan) for layer in facts.layers)
    return f"recurrent layers hold {format_bytes(state)} a sequence" if state else ""
