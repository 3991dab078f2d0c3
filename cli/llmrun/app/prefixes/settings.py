"""What K/V of equal tokens depend on besides the model; it has to be equal for a stored prefix to serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmrun.config.views import ContextSettings
from llmrun.engine.api import EngineFacts

_ROPE = ("rope_scaling", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx")


def rope_settings(context: ContextSettings) -> dict[str, object]:
    """Changes to the positions that the model was trained with."""
    return {name: getattr(context, name) for name in _ROPE}


def layout_settings(facts: EngineFacts, rope: Mapping[str, object], *, sized: bool = True) -> dict[str, str]:
    """What the meaning of a sequence's K/V depends on besides the model.

    `sized`: the context was given its size. Where llmrun chooses it, by the conversation and the memory that
    is free at the moment, it tells nothing: K/V moves between sizes as it does where a context grows.
    """
    return {
        "engine": _engine_build(facts),
        "n_ctx": str(facts.n_ctx_seq) if sized else "auto",
        "long_rope": str(facts.long_rope),
        "n_parallel": str(facts.n_seq),
        "kv_unified": str(facts.kv_unified),
        "type_k": facts.type_k,
        "type_v": facts.type_v,
        "flash_attn": facts.flash_attn,
        "swa_full": str(facts.swa_full),
        **{name: str(value) for name, value in rope.items()},
    }


def _engine_build(facts: EngineFacts) -> str:
    """The library's version and size: builds of a changed source may all tell one version."""
    try:
        return f"{facts.identity.build} of {Path(facts.library).stat().st_size:,} bytes"
    except OSError:
        return f"{facts.identity.build} {facts.library}"


def what_changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two sets of settings, each in words."""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return [f"{n} was {before.get(n, 'not set')}, is {now.get(n, 'not set')}" for n in names]
