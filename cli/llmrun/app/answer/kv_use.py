"""What the K/V cache holds, by the engine's own figures."""

from __future__ import annotations

from llmrun.engine.api import Engine
from llmrun.events import KvUse
from llmrun.metrics.kv import device_kv


def kv_use(engine: Engine, seq: int = 0) -> KvUse:
    """Positions held by `seq`, and bytes allocated and used per device over all sequences."""
    facts = engine.facts
    held = [len(engine.held(s)) for s in range(facts.n_seq)]
    n_stream = 1 if facts.kv_unified else facts.n_seq
    devices = device_kv(
        facts.cache_blocks, held, n_stream=n_stream, n_swa=facts.n_swa, swa_full=facts.swa_full
    )
    return KvUse(held[seq], facts.n_ctx_seq, facts.type_k, facts.type_v, devices)
