"""The layers of many architectures as llama.cpp's src/models/<arch>.cpp asks for them: names and shapes.

A name that ends in a dot has no suffix in the file, one that ends in ".bias" keeps it, all others get
".weight".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.support.gguf_writer import TensorType, Value

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters in llama.cpp's names; what an architecture does not have stays unused."""

    arch: str
    n_layer: int = 2
    n_embd: int = 128
    n_ff: int = 192
    n_head: int = 4
    n_head_kv: int = 2
    head_size: int = 32
    head_size_swa: int = 32  # of window layers, where they have their own
    n_rot: int = 0  # 0: all of the head
    n_vocab: int = 320
    n_ctx: int = 4096
    window: int = 64
    pattern: int = 0  # 0: the architecture's own
    n_expert: int = 4
    n_expert_used: int = 2
    n_ff_exp: int = 96
    n_ff_shexp: int = 96
    n_dense: int = 1  # leading layers without experts
    n_shared: int = 0  # last layers that read the cache of earlier ones
    n_predict: int = 0  # layers for token prediction, counted in n_layer
    q_rank: int = 64
    kv_rank: int = 64
    head_k_mla: int = 64
    head_v_mla: int = 32
    d_conv: int = 4
    d_inner: int = 256
    d_state: int = 16
    dt_rank: int = 8
    n_group: int = 2
    interval: int = 2  # every so many layers one of full attention
    attention_layers: tuple[int, ...] = (1,)  # of hybrids that list them
    tied: bool = False
    weights: TensorType = TensorType.F32
    extra: dict[str, Value] = field(default_factory=dict)

    @property
    def rot(self) -> int:
        return self.n_rot or self.head_size


def _qkv(h: Hyper, b: str, q: int = 0) -> Shapes:
    q = q or h.n_head * h.head_size
    kv = h.n_head_kv * h.head_size
    yield f"{b}attn_q", (h.n_embd, q)
    yield f"{b}attn_k", (h.n_embd, kv)
    yield f"{b}attn_v", (h.n_embd, kv)
    yield f"{b}attn_output", (h.n_head * h.head_size, h.n_embd)


def _norms(h: Hyper, b: str, *names: str) -> Shapes:
    for name in names:
        yield f"{b}{name}", (h.n_embd,)


def _qk_norms(h: Hyper, b: str) -> Shapes:
    yield f"{b}attn_q_norm", (h.head_size,)
    yield f"{b}attn_k_norm", (h.head_size,)


def _ffn(h: Hyper, b: str, suffix: str = "", n_ff: int = 0) -> Shapes:
    n_ff = n_ff or h.n_ff
    yield f"{b}ffn_gate{suffix}", (h.n_embd, n_ff)
    yield f"{b}ffn_up{suffix}", (h.n_embd, n_ff)
    yield f"{b}ffn_down{suffix}", (n_ff, h.n_embd)


def _experts(h: Hyper, b: str) -> Shapes:
    yield f"{b}ffn_gate_inp", (h.n_embd, h.n_expert)
    yield f"{b}ffn_gate_exps", (h.n_embd, h.n_ff_exp, h.n_expert)
    yield f"{b}ffn_up_exps", (h.n_embd, h.n_ff_exp, h.n_expert)
    yield f"{b}ffn_down_exps", (h.n_ff_exp, h.n_embd, h.n_expert)


def _dense(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield from _qkv(h, b)
    yield from _ffn(h, b)


def _qwen2(h: Hyper, il: int, b: str) -> Shapes:
    yield from _dense(h, il, b)
    yield f"{b}attn_q.bias", (h.n_head * h.head_size,)
    yield f"{b}attn_k.bias", (h.n_head_kv * h.head_size,)
    yield f"{b}attn_v.bias", (h.n_head_kv * h.head_size,)


def _qwen3(h: Hyper, il: int, b: str) -> Shapes:
    yield from _dense(h, il, b)
    yield from _qk_norms(h, b)


def _qwen3moe(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield from _qkv(h, b)
    yield from _qk_norms(h, b)
    yield from _experts(h, b)


def _gemma2(h: Hyper, il: int, b: str) -> Shapes:
    yield from _dense(h, il, b)
    yield from _norms(h, b, "post_attention_norm", "post_ffw_norm")


def _gemma3(h: Hyper, il: int, b: str) -> Shapes:
    yield from _gemma2(h, il, b)
    yield from _qk_norms(h, b)


_ALTUP, _PER_LAYER, _LAUREL = 4, 256, 64


def _gemma3n(h: Hyper, il: int, b: str) -> Shapes:
    yield from _gemma3(h, il, b)
    yield from _norms(h, b, "post_norm", "altup_correct_scale", "altup_router_norm", "laurel_post_norm")
    yield f"{b}inp_gate", (h.n_embd, _PER_LAYER)
    yield f"{b}proj", (_PER_LAYER, h.n_embd)
    yield f"{b}altup_correct_coef", (_ALTUP, _ALTUP)
    yield f"{b}altup_predict_coef", (_ALTUP, _ALTUP * _ALTUP)
    yield f"{b}altup_router", (h.n_embd, _ALTUP)
    yield f"{b}laurel_l", (h.n_embd, _LAUREL)
    yield f"{b}laurel_r", (_LAUREL, h.n_embd)
    if il == 0:
        yield "altup_proj", (h.n_embd, h.n_embd, _ALTUP - 1)
        yield "altup_unembd_proj", (h.n_embd, h.n_embd, _ALTUP - 1)
        yield "per_layer_token_embd", (_PER_LAYER * h.n_layer, h.n_vocab)
        yield "per_layer_model_proj", (h.n_embd, _PER_LAYER * h.n_layer)
        yield "per_layer_proj_norm", (_PER_LAYER,)


def is_windowed(h: Hyper, il: int) -> bool:
    """gemma4 lists its window layers; here all but every `interval`-th."""
    return (il + 1) % h.interval != 0


def _gemma4(h: Hyper, il: int, b: str) -> Shapes:
    size = h.head_size_swa if is_windowed(h, il) else h.head_size
    yield from _gemma2(replace(h, head_size=size), il, b)
    yield from _qk_norms(replace(h, head_size=size), b)
    yield f"{b}post_norm", (h.n_embd,)
    yield f"{b}inp_gate", (h.n_embd, _PER_LAYER)
    yield f"{b}proj", (_PER_LAYER, h.n_embd)
    if il == 0:
        yield "rope_freqs", (h.head_size // 2,)
        yield "per_layer_token_embd", (_PER_LAYER * h.n_layer, h.n_vocab)
        yield "per_layer_model_proj", (h.n_embd, _PER_LAYER * h.n_layer)
        yield "per_layer_proj_norm", (_PER_LAYER,)


def _gpt_oss(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "post_attention_norm")
    yield from _qkv(h, b)
    yield f"{b}attn_q.bias", (h.n_head * h.head_size,)
    yield f"{b}attn_k.bias", (h.n_head_kv * h.head_size,)
    yield f"{b}attn_v.bias", (h.n_head_kv * h.head_size,)
    yield f"{b}attn_output.bias", (h.n_embd,)
    yield f"{b}attn_sinks", (h.n_head,)
    yield from _experts(h, b)
    yield f"{b}ffn_gate_inp.bias", (h.n_expert,)
    yield f"{b}ffn_gate_exps.bias", (h.n_ff_exp, h.n_expert)
    yield f"{b}ffn_up_exps.bias", (h.n_ff_exp, h.n_expert)
    yield f"{b}ffn_down_exps.bias", (h.n_embd, h.n_expert)


def _phi3(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield f"{b}attn_qkv", (h.n_embd, (h.n_head + 2 * h.n_head_kv) * h.head_size)
    yield f"{b}attn_output", (h.n_embd, h.n_embd)
    yield f"{b}ffn_up", (h.n_embd, 2 * h.n_ff)
    yield f"{b}ffn_down", (h.n_ff, h.n_embd)


def _deepseek2(h: Hyper, il: int, b: str) -> Shapes:
    nope = h.head_k_mla - h.rot
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield f"{b}attn_q_a_norm", (h.q_rank,)
    yield f"{b}attn_kv_a_norm", (h.kv_rank,)
    yield f"{b}attn_q_a", (h.n_embd, h.q_rank)
    yield f"{b}attn_q_b", (h.q_rank, h.n_head * h.head_k_mla)
    yield f"{b}attn_kv_a_mqa", (h.n_embd, h.kv_rank + h.rot)
    yield f"{b}attn_k_b", (nope, h.kv_rank, h.n_head)
    yield f"{b}attn_v_b", (h.kv_rank, h.head_v_mla, h.n_head)
    yield f"{b}attn_output", (h.n_head * h.head_v_mla, h.n_embd)
    if il < h.n_dense:
        yield from _ffn(h, b)
    else:
        yield from _experts(h, b)
        yield from _ffn(h, b, "_shexp", h.n_ff_exp)
        yield f"{b}exp_probs_b.bias", (h.n_expert,)


def _glm4moe(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "post_attention_norm")
    yield from _qkv(h, b)
    yield from _qk_norms(h, b)
    if il < h.n_dense:
        yield from _ffn(h, b)
    else:
        yield from _experts(h, b)
        yield from _ffn(h, b, "_shexp", h.n_ff_exp)
        yield f"{b}exp_probs_b.bias", (h.n_expert,)
    if il >= h.n_layer - h.n_predict:
        yield f"{b}nextn.eh_proj", (2 * h.n_embd, h.n_embd)
        yield from _norms(h, b, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


def _llama4(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield from _qkv(h, b)
    if (il + 1) % 2:
        yield from _ffn(h, b)
    else:
        yield from _experts(h, b)
        yield from _ffn(h, b, "_shexp", h.n_ff_exp)


def _cohere2(h: Hyper, il: int, b: str) -> Shapes:
    yield f"{b}attn_norm", (h.n_embd,)
    yield from _qkv(h, b)
    yield from _ffn(h, b)


def _mamba(h: Hyper, il: int, b: str) -> Shapes:
    yield f"{b}attn_norm", (h.n_embd,)
    yield f"{b}ssm_in", (h.n_embd, 2 * h.d_inner)
    yield f"{b}ssm_conv1d", (h.d_conv, h.d_inner)
    yield f"{b}ssm_conv1d.bias", (h.d_inner,)
    yield f"{b}ssm_x", (h.d_inner, h.dt_rank + 2 * h.d_state)
    yield f"{b}ssm_dt", (h.dt_rank, h.d_inner)
    yield f"{b}ssm_dt.bias", (h.d_inner,)
    yield f"{b}ssm_a.", (h.d_state, h.d_inner)
    yield f"{b}ssm_d.", (h.d_inner,)
    yield f"{b}ssm_out", (h.d_inner, h.n_embd)


def _mamba2_mixer(h: Hyper, b: str) -> Shapes:
    conv = h.d_inner + 2 * h.n_group * h.d_state
    yield f"{b}ssm_in", (h.n_embd, h.d_inner + conv + h.dt_rank)
    yield f"{b}ssm_conv1d", (h.d_conv, conv)
    yield f"{b}ssm_conv1d.bias", (conv,)
    yield f"{b}ssm_dt.bias", (h.dt_rank,)
    yield f"{b}ssm_a.", (1, h.dt_rank)
    yield f"{b}ssm_d.", (1, h.dt_rank)
    yield f"{b}ssm_norm", (h.d_inner // h.n_group, h.n_group)
    yield f"{b}ssm_out", (h.d_inner, h.n_embd)


def _mamba2(h: Hyper, il: int, b: str) -> Shapes:
    yield f"{b}attn_norm", (h.n_embd,)
    yield from _mamba2_mixer(h, b)


def _falcon_h1(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm.")
    yield from _mamba2_mixer(h, b)
    yield from _qkv(h, b)
    yield from _ffn(h, b)


def _granitehybrid(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield from _qkv(h, b) if il in h.attention_layers else _mamba2_mixer(h, b)
    yield from _ffn(h, b)


def _lfm2(h: Hyper, il: int, b: str) -> Shapes:
    yield from _norms(h, b, "attn_norm", "ffn_norm")
    yield from _ffn(h, b)
    if il in h.attention_layers:
        yield from _qkv(h, b)
        yield from _qk_norms(h, b)
    else:
        yield f"{b}shortconv.conv", (h.d_conv, h.n_embd)
        yield f"{b}shortconv.in_proj", (h.n_embd, 3 * h.n_embd)
        yield f"{b}shortconv.out_proj", (h.n_embd, h.n_embd)


def _delta_net(h: Hyper, il: int, b: str) -> Shapes:
    """What qwen3next and qwen35 share: attention on every `interval`-th layer, a delta net on the others."""
    yield from _norms(h, b, "attn_norm", "post_attention_norm")
    if (il + 1) % h.interval == 0:
        yield from _qkv(h, b, 2 * h.n_head * h.head_size)
        yield from _qk_norms(h, b)
        return
    key, value = h.d_state * h.n_group, h.d_state * h.dt_rank
    yield f"{b}attn_qkv", (h.n_embd, 2 * key + value)
    yield f"{b}attn_gate", (h.n_embd, value)
    yield f"{b}ssm_conv1d", (h.d_conv, 2 * key + value)
    yield f"{b}ssm_dt.bias", (h.dt_rank,)
    yield f"{b}ssm_a.", (h.dt_rank,)
    yield f"{b}ssm_norm", (h.d_state,)
    yield f"{b}ssm_out", (value, h.n_embd)


def _qwen3next(h: Hyper, il: int, b: str) -> Shapes:
    yield from _delta_net(h, il, b)
    if (il + 1) % h.interval:
        yield f"{b}ssm_ba", (h.n_embd, 2 * h.dt_rank)
    yield from _experts(h, b)
    yield f"{b}ffn_gate_inp_shexp", (h.n_embd,)
    yield from _ffn(h, b, "_shexp", h.n_ff_shexp)


def _qwen35(h: Hyper, il: int, b: str) -> Shapes:
    yield from _delta_net(h, il, b)
    if (il + 1) % h.interval:
        yield f"{b}ssm_alpha", (h.n_embd, h.dt_rank)
        yield f"{b}ssm_beta", (h.n_embd, h.dt_rank)
    yield from _ffn(h, b)


LAYERS: dict[str, Callable[[Hyper, int, str], Shapes]] = {
    "llama": _dense,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gpt-oss": _gpt_oss,
    "phi3": _phi3,
    "deepseek2": _deepseek2,
    "glm4moe": _glm4moe,
    "llama4": _llama4,
    "cohere2": _cohere2,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granitehybrid,
    "lfm2": _lfm2,
    "qwen3next": _qwen3next,
    "qwen35": _qwen35,
}
"""Architecture -> tensors of one layer, by its number and the prefix of its names."""
