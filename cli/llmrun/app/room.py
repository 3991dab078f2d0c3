"""Refuses a context that cannot fit in main memory before anything is allocated.

The kernel grants memory it does not have and ends the process later, so the engine cannot be relied on to
fail. Only what has to be in memory counts: cache, state and buffers, and weights that are read instead of
mapped. Mapped weights can be read again at any time; they make a run slow, not impossible.
"""

from __future__ import annotations

from llmrun.app.host_memory import HostMemory, host_memory
from llmrun.app.memory_plan import memory_plan
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import devices
from llmrun.errors import DoesNotFit
from llmrun.gguf.facts import ModelFacts
from llmrun.gguf.header import GgufHeader
from llmrun.units import format_bytes, format_tokens

_F32_BYTES = 4
_WORTH_A_LOOK = 4
"""An exact sum is made where a rough one, in the widest type, passes this part of the free memory."""


def check_room(header: GgufHeader, facts: ModelFacts, model: ModelParams, context: ContextParams) -> None:
    """Raise `DoesNotFit` when the context needs more main memory than there is; not where a GPU takes it."""
    host = host_memory()
    n_ctx = context.n_ctx or facts.n_ctx_train
    rough_bytes = n_ctx * sum(facts.n_head_kv) * (facts.head_size_k + facts.head_size_v) * _F32_BYTES
    if model.use_mmap and rough_bytes < host.free_bytes // _WORTH_A_LOOK:
        return
    if model.gpu_layers != 0 and any(device.kind in ("gpu", "igpu") for device in devices()):
        return
    _check_exactly(header, model, context, host)


def _check_exactly(header: GgufHeader, model: ModelParams, context: ContextParams, host: HostMemory) -> None:
    from dataclasses import replace

    from llmrun.gguf.hparams import memory_facts
    from llmrun.memory.plan import DeviceInfo
    from llmrun.memory.use import device_use
    from llmrun.memory.ways import ways_out

    facts = memory_facts(header)
    plan = memory_plan(facts, replace(model, gpu_layers=0), context)
    cpu = (DeviceInfo("CPU", "cpu", host.free_bytes, host.total_bytes),)
    use = device_use(facts, plan, cpu).buckets[0]
    mapped_bytes = use.weights_bytes if model.use_mmap else 0
    needed_bytes = use.sum_bytes - mapped_bytes
    if needed_bytes <= host.free_bytes:
        return
    cpu = (replace(cpu[0], free_bytes=host.free_bytes + mapped_bytes),)
    ways = {way.kind: way.value for way in ways_out(facts, plan, cpu, 0, auto_layers=False)}
    hints = []
    if "kv_type" in ways:
        hints.append(f"--kv-type {ways['kv_type']} -fa on")
    if "context" in ways:
        hints.append(f"-c {ways['context']}")
    raise DoesNotFit(
        f"{format_tokens(plan.n_ctx)} of context need {format_bytes(needed_bytes)}, "
        f"{format_bytes(host.free_bytes)} of memory are free",
        f"what would fit: {' or '.join(hints)}" if hints else "use a smaller model",
    )
