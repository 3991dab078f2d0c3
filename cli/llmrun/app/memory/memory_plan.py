"""Turns what the engine would be asked for into a plan of memory."""

from __future__ import annotations

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.plan import MemoryPlan

_WITHOUT_FLASH_ATTENTION = frozenset({"grok"})  # llama_init_from_model in src/llama-context.cpp


def memory_plan(facts: MemoryFacts, model: ModelParams, context: ContextParams) -> MemoryPlan:
    """The plan of these parameters. Layers "auto" count as all of them, flash attention "auto" as on."""
    layers = model.gpu_layers
    return MemoryPlan(
        n_ctx=context.n_ctx,
        n_seq=context.n_seq,
        kv_unified=context.kv_unified,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        type_k=context.type_k,
        type_v=context.type_v,
        flash_attn="off" if context.flash_attn == "off" or facts.arch in _WITHOUT_FLASH_ATTENTION else "on",
        swa_full=context.swa_full,
        gpu_layers=layers if isinstance(layers, int) else facts.n_slots,
        offload_kqv=context.offload_kqv,
        cpu_moe=model.cpu_moe,
        n_cpu_moe=model.n_cpu_moe,
        split_mode="layer" if model.main_gpu is None else "none",
        tensor_split=model.tensor_split,
        main_gpu=model.main_gpu or 0,
        overrides=model.override_tensor,
        use_mmap=model.use_mmap,
    )
