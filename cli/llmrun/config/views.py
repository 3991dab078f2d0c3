"""Effective settings by group, typed: one field for each row of the schema table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrun.config.kinds import TokenBias

OnOffAuto = Literal["on", "off", "auto"]
Think = Literal["show", "dim", "hide"]


@dataclass(frozen=True, slots=True)
class HardwareSettings:
    """How the machine is used."""

    n_threads: int | Literal["auto"]
    n_threads_batch: int | Literal["auto"]
    n_batch: int
    n_ubatch: int
    n_gpu_layers: int | Literal["auto", "all"]
    strict_offload: bool
    tensor_split: tuple[float, ...]
    main_gpu: int | None
    cpu_moe: bool
    n_cpu_moe: int
    override_tensor: tuple[str, ...]
    rpc: tuple[str, ...]
    offload_kqv: bool
    flash_attn: OnOffAuto
    use_mmap: bool
    use_mlock: bool


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Model and window. `n_ctx` 0 is the trained length; None leaves the model's own value."""

    model: str | None
    n_ctx: int | Literal["auto"]
    n_parallel: int
    kv_unified: bool
    type_k: str
    type_v: str
    swa_full: bool
    prefix_cache: bool
    prefix_cache_mib: int | Literal["auto"]
    rope_scaling: Literal["none", "linear", "yarn"] | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_orig_ctx: int | None


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The sampler chain. `seed` None draws one."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    seed: int | None
    logit_bias: TokenBias


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What the answer may be and what is shown. `max_tokens` None is no bound."""

    max_tokens: int | None
    overflow: Literal["stop", "drop", "summarize"]
    overflow_headroom: float
    stop: tuple[str, ...]
    system: str | None
    fold_system: bool
    think: Think
    panel: Literal["full", "line", "off"]
    markdown: bool
    think_budget: int | None
    stats: OnOffAuto
