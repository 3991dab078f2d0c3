"""Turns effective settings into what the engine is asked for."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from llmrun.config.layers import Effective
from llmrun.config.schema import DEFAULT_CTX, MAX_SEED
from llmrun.engine.api import ContextParams, ModelParams, RopeParams, SamplingParams
from llmrun.engine.threads import usable_threads

_RULE = re.compile(r"(.+?)=([^=,]+)(?:,|$)")


def model_params(settings: Effective, path: str) -> ModelParams:
    """How to load the weights."""
    hardware = settings.hardware
    return ModelParams(
        path,
        gpu_layers=hardware.n_gpu_layers,
        use_mmap=hardware.use_mmap,
        use_mlock=hardware.use_mlock,
        tensor_split=hardware.tensor_split,
        main_gpu=hardware.main_gpu,
        cpu_moe=hardware.cpu_moe,
        n_cpu_moe=hardware.n_cpu_moe,
        override_tensor=tensor_rules(hardware.override_tensor),
        rpc=tuple(server for servers in hardware.rpc for server in servers.split(",")),
    )


def tensor_rules(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of pattern and buffer; one text may hold several, divided by commas as in llama.cpp."""
    found = (_RULE.findall(text) for text in texts)
    return tuple((pattern, buffer) for rules in found for pattern, buffer in rules)


def context_params(settings: Effective, n_ctx_train: int) -> ContextParams:
    """The context to create; `n_ctx_train` is 0 when the file does not tell."""
    hardware, context = settings.hardware, settings.context
    threads = usable_threads() if hardware.n_threads == "auto" else hardware.n_threads
    threads_batch = threads if hardware.n_threads_batch == "auto" else hardware.n_threads_batch
    return ContextParams(
        n_ctx=wanted_ctx(context.n_ctx, n_ctx_train),
        n_batch=hardware.n_batch,
        n_ubatch=min(hardware.n_ubatch, hardware.n_batch),
        n_seq=context.n_parallel,
        kv_unified=context.kv_unified,
        n_threads=threads,
        n_threads_batch=threads_batch,
        flash_attn=hardware.flash_attn,
        type_k=context.type_k,
        type_v=context.type_v,
        swa_full=context.swa_full,
        offload_kqv=hardware.offload_kqv,
        rope=RopeParams(
            scaling=context.rope_scaling,
            freq_base=context.rope_freq_base,
            freq_scale=context.rope_freq_scale,
            yarn_orig_ctx=context.yarn_orig_ctx,
        ),
    )


def wanted_ctx(n_ctx: int | str, n_ctx_train: int) -> int:
    """Cells to ask for: "auto" is 8,192 or the trained length if smaller, 0 the trained length."""
    if n_ctx == "auto":
        return min(DEFAULT_CTX, n_ctx_train) if n_ctx_train else DEFAULT_CTX
    return int(n_ctx) or n_ctx_train or DEFAULT_CTX


def sampling_params(settings: Effective, n_ctx: int, *, ignore_eos: bool = False) -> SamplingParams:
    """The sampler chain for a context of `n_ctx` tokens, or of as many as it may grow to in the answer.

    Without a seed one is drawn, to be reported.
    """
    s = settings.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        typical_p=s.typical_p,
        repeat_penalty=s.repeat_penalty,
        repeat_last_n=n_ctx if s.repeat_last_n < 0 else s.repeat_last_n,
        frequency_penalty=s.frequency_penalty,
        presence_penalty=s.presence_penalty,
        seed=secrets.randbelow(MAX_SEED) if s.seed is None else s.seed,
        logit_bias=s.logit_bias,
        ignore_eos=ignore_eos,
    )
