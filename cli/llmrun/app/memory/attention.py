"""K/V cache types: those the engine refuses, and those that move attention from a GPU to the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from llmrun.engine.api import ContextParams
from llmrun.engine.flash import AttentionShape, TypePair
from llmrun.errors import UsageError
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.cache import is_quantized, refusal
from llmrun.memory.placement import Placement
from llmrun.memory.plan import MemoryPlan

FlashTypes = Callable[
    [Sequence[str], Sequence[AttentionShape], Sequence[TypePair]], Mapping[str, Sequence[TypePair]]
]
"""Answers like `engine.flash.flash_attention_types`."""

_OTHERS: tuple[TypePair, ...] = (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("f16", "f16"))


def check_cache_types(facts: MemoryFacts, plan: MemoryPlan) -> None:
    """Raise `UsageError` with the reason where the engine refuses the plan's cache types."""
    reason = refusal(facts, plan)
    if reason:
        hint = "choose another type with --kv-type, such as f16"
        if plan.flash_attn == "off" and is_quantized(plan.type_v):
            hint = "turn it on with -fa on, or choose f16 with -ctv f16"
        raise UsageError(reason, hint)


def attention_off_gpus(
    facts: MemoryFacts, plan: MemoryPlan, context: ContextParams, placement: Placement, ask: FlashTypes
) -> Iterator[str]:
    """A warning for each GPU whose layers would have their attention computed on the CPU.

    On "auto" the engine turns flash attention off there by itself, unless a quantized V cache needs it.
    """
    forced = context.flash_attn == "on" or (context.flash_attn == "auto" and is_quantized(plan.type_v))
    attending = {placement.layer(il) for il, layer in enumerate(facts.layers) if layer.k_width} - {0}
    if not forced or plan.flash_attn == "off" or not plan.offload_kqv or not attending:
        return
    names = [placement.devices[index].name for index in sorted(attending)]
    wanted = (plan.type_k, plan.type_v)
    others = [pair for pair in _OTHERS if pair != wanted]
    for name, able in ask(names, _shapes(facts), [wanted, *others]).items():
        if wanted in able:
            continue
        better = next((f"--kv-type {pair[0]}" for pair in others if pair in able), "-fa off with -ctv f16")
        yield (
            f"{name} has no flash attention for K in {wanted[0]} and V in {wanted[1]}: it will run on the "
            f"CPU, many times slower; {better} keeps it on the GPU"
        )


def _shapes(facts: MemoryFacts) -> list[AttentionShape]:
    found = (AttentionShape(la.heads, la.kv_heads, la.head_k, la.head_v) for la in facts.layers if la.k_width)
    return list(dict.fromkeys(found))
