"""The tensor table as weights with their place, and what it tells about the shape of each layer.

The engine places weights by kind (llama.cpp, LLM_TENSOR_INFOS in src/llama-arch.cpp): the input embedding
stays on the CPU, `blk.N` tensors belong to layer N, the rest of them to the output, which counts as the
layer after the last. A few small tensors (rotation factors) are copied to every device that has layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmrun.gguf.header import GgufHeader, TensorInfo
from llmrun.gguf.layers import per_layer

INPUT_SLOT = -1
_INPUTS = ("token_embd.weight", "position_embd.", "token_types.", "per_layer_token_embd.")
_FIRST_LAYER = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.")
_SPREAD = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_OUTPUT_NORM_NAMED_AFTER_INPUT = ("lfm2", "lfm2moe")
_LAYER = re.compile(r"blk\.(\d+)\.")
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""In the names of a layer's experts (LLM_FFN_EXPS_REGEX in llama.cpp's common/common.h)."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor. `slot`: -1 the input, N layer N, the number of layers for the output.

    `spread`: copied to each device with layers. `expert`: one of a layer's many experts. `matrix`: large
    enough to be multiplied with, not a norm or a bias; `widths` are then the numbers a token that it reads
    and gives, those of one expert where there are many.
    """

    name: str
    slot: int
    size_bytes: int
    n_params: int
    expert: bool = False
    spread: bool = False
    matrix: bool = True
    widths: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of latent attention: rank of the query, head sizes outside the latent space, rotated part."""

    q_rank: int = 0
    head_k: int = 0
    head_v: int = 0
    rotated: int = 0


@dataclass(frozen=True, slots=True)
class MixerShape:
    """Widths of a recurrent layer. `kind` is empty where only `projected` is known.

    `projected` what it projects its input to, `inner` its inner width, `grouped` what is convolved beside
    it, `selective` the projection that steers the scan, `kernel` the convolution's length in tokens,
    `repeated` the width of queries once they are repeated for each head of a delta net, 0 where they are not.
    """

    kind: str = ""
    projected: int = 0
    inner: int = 0
    grouped: int = 0
    selective: int = 0
    heads: int = 0
    kernel: int = 1
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Widths of a layer's intermediate results, in numbers a token; 0 where the layer has none.

    `ff` the dense inner width, `gated` whether there is a gate matrix beside it, `ff_fused` both in one;
    `ff_expert` of one expert, `ff_shared` of those every token uses, `shared_gate` whether their result is
    gated; `query` of the projection to queries,
    twice theirs where a gate for the result comes with them.
    """

    ff: int = 0
    gated: bool = True
    ff_fused: bool = False
    ff_expert: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    ff_shared: int = 0
    shared_gate: bool = False
    qkv_fused: bool = False
    query: int = 0
    mixer: MixerShape = MixerShape()
    latent: LatentShape = LatentShape()


def _slot(name: str, arch: str, n_layer: int) -> int:
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer[1])
    if name.startswith(_INPUTS):
        return INPUT_SLOT
    if name.startswith("token_embd_norm.") and arch in _OUTPUT_NORM_NAMED_AFTER_INPUT:
        return n_layer
    return 0 if name.startswith((*_FIRST_LAYER, *_SPREAD)) else n_layer


def weight_table(
    arch: str, tensors: Iterable[TensorInfo], n_layer_all: int, n_trunk: int
) -> tuple[Weight, ...]:
    """Every tensor the engine loads; those of extra prediction layers are left in the file."""
    table = []
    for tensor in tensors:
        slot = _slot(tensor.name, arch, n_layer_all)
        if n_trunk <= slot < n_layer_all:
            continue
        expert = re.search(EXPERTS, tensor.name) is not None
        read, given, times = (*tensor.dims, 1, 1)[:3]
        heads = 1 if expert else times
        table.append(
            Weight(
                tensor.name,
                slot,
                tensor.size_bytes,
                tensor.n_params,
                expert=expert,
                spread=tensor.name.startswith(_SPREAD),
                matrix=len(tensor.dims) > 1,
                widths=(read * heads, given * heads),
            )
        )
    return tuple(table)


def layer_shapes(header: GgufHeader, tensors: Iterable[TensorInfo], n_layer: int) -> tuple[LayerShape, ...]:
    """The shape of each listed layer, read off its tensors."""
    widths: list[dict[str, int]] = [{} for _ in range(n_layer)]
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None or int(match[1]) >= n_layer or not tensor.name.endswith(".weight"):
            continue
        part = tensor.name[match.end() :]
        widths[int(match[1])][part] = tensor.dims[1] if len(tensor.dims) > 1 else tensor.dims[0]
        if part == "ffn_down.weight":
            widths[int(match[1])]["inner"] = tensor.dims[0]
    n_expert = header.integer(f"{header.arch}.expert_count") or 0
    used = per_layer(header, f"{header.arch}.expert_used_count", n_layer, (0,) * n_layer)
    latent = _latent(header)
    return tuple(
        _shape(widths[il], n_expert, used[il], latent, _mixer(header, widths[il])) for il in range(n_layer)
    )


def _mixer(header: GgufHeader, widths: dict[str, int]) -> MixerShape:
    def count(suffix: str) -> int:
        return max(0, header.integer(f"{header.arch}.{suffix}") or 0)

    if "shortconv.in_proj.weight" in widths:
        return MixerShape("short_convolution", widths["shortconv.in_proj.weight"])
    if "ssm_conv1d.weight" not in widths:
        return MixerShape()
    inner, state, groups = count("ssm.inner_size"), count("ssm.state_size"), count("ssm.group_count")
    selective = widths.get("ssm_x.weight", 0)
    projected = widths.get("ssm_in.weight", 0)
    heads = count("ssm.time_step_rank")
    delta_net = "attn_gate.weight" in widths and not projected
    repeats = delta_net and header.arch == "qwen3next" and groups != heads
    return MixerShape(
        kind="delta_net" if delta_net else "state_space" if projected and inner else "",
        projected=projected or widths.get("attn_qkv.weight", 0),
        inner=inner,
        grouped=0 if selective else 2 * groups * state,
        selective=selective,
        heads=heads,
        kernel=max(1, count("ssm.conv_kernel")),
        repeated=state * heads if repeats else 0,
    )


def _latent(header: GgufHeader) -> LatentShape:
    def count(suffix: str) -> int:
        return max(0, header.integer(f"{header.arch}.{suffix}") or 0)

    return LatentShape(
        q_rank=count("attention.q_lora_rank"),
        head_k=count("attention.key_length_mla"),
        head_v=count("attention.value_length_mla"),
        rotated=count("rope.dimension_count"),
    )


def _shape(
    widths: dict[str, int], n_expert: int, used: int, latent: LatentShape, mixer: MixerShape
) -> LayerShape:
    def width(*names: str) -> int:
        return next((widths[f"{name}.weight"] for name in names if f"{name}.weight" in widths), 0)

    up, inner = width("ffn_up"), widths.get("inner", 0)
    gated = "ffn_gate.weight" in widths
    fused_experts = width("ffn_gate_up_exps") // 2
    experts = width("ffn_up_exps") or fused_experts
    return LayerShape(
        ff=inner,
        gated=gated,
        ff_fused=inner > 0 and up == 2 * inner,
        ff_expert=experts,
        n_expert=n_expert if experts else 0,
        n_expert_used=used if experts else 0,
        ff_shared=width("ffn_up_shexp"),
        shared_gate="ffn_gate_inp_shexp.weight" in widths,
        qkv_fused="attn_qkv.weight" in widths,
        query=width("attn_q"),
        mixer=mixer,
        latent=latent,
    )
