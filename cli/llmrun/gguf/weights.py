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
_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERT = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor. `slot`: -1 the input, N layer N, the number of layers for the output.

    `spread`: copied to each device with layers. `expert`: one of a layer's many experts. `matrix`: large
    enough to be multiplied with, not a norm or a bias.
    """

    name: str
    slot: int
    size_bytes: int
    n_params: int
    expert: bool = False
    spread: bool = False
    matrix: bool = True


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Widths of a layer's intermediate results, in numbers a token; 0 where the layer has none.

    `ff` the dense inner width, `gated` whether it has a gate beside it, `ff_fused` both in one matrix;
    `ff_expert` of one expert, `ff_shared` of the experts every token uses; `mixer` the width of what a
    recurrent layer projects its input to.
    """

    ff: int = 0
    gated: bool = True
    ff_fused: bool = False
    ff_expert: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    ff_shared: int = 0
    expert_bias: bool = False
    qkv_fused: bool = False
    mixer: int = 0


def _slot(name: str, n_layer: int) -> int:
    layer = _LAYER.match(name)
    if layer is not None:
        return int(layer[1])
    if name.startswith(_INPUTS):
        return INPUT_SLOT
    return 0 if name.startswith((*_FIRST_LAYER, *_SPREAD)) else n_layer


def weight_table(tensors: Iterable[TensorInfo], n_layer_all: int, n_trunk: int) -> tuple[Weight, ...]:
    """Every tensor the engine loads; those of extra prediction layers are left in the file."""
    table = []
    for tensor in tensors:
        slot = _slot(tensor.name, n_layer_all)
        if n_trunk <= slot < n_layer_all:
            continue
        table.append(
            Weight(
                tensor.name,
                slot,
                tensor.size_bytes,
                tensor.n_params,
                expert=_EXPERT.search(tensor.name) is not None,
                spread=tensor.name.startswith(_SPREAD),
                matrix=len(tensor.dims) > 1,
            )
        )
    return tuple(table)


def layer_shapes(header: GgufHeader, tensors: Iterable[TensorInfo], n_layer: int) -> tuple[LayerShape, ...]:
    """The shape of each listed layer, read off its tensors."""
    widths: list[dict[str, int]] = [{} for _ in range(n_layer)]
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None or int(match[1]) >= n_layer or not tensor.name.endswith((".weight", ".bias")):
            continue
        part = tensor.name[match.end() :]
        widths[int(match[1])][part] = tensor.dims[1] if len(tensor.dims) > 1 else tensor.dims[0]
    n_expert = header.integer(f"{header.arch}.expert_count") or 0
    used = per_layer(header, f"{header.arch}.expert_used_count", n_layer, (0,) * n_layer)
    return tuple(_shape(widths[il], n_expert, used[il]) for il in range(n_layer))


def _shape(widths: dict[str, int], n_expert: int, used: int) -> LayerShape:
    def width(*names: str) -> int:
        return next((widths[f"{name}.weight"] for name in names if f"{name}.weight" in widths), 0)

    up, down_exists = width("ffn_up"), "ffn_down.weight" in widths
    gated = "ffn_gate.weight" in widths
    fused_experts = width("ffn_gate_up_exps") // 2
    experts = width("ffn_up_exps") or fused_experts
    return LayerShape(
        ff=up if down_exists else 0,
        gated=gated,
        ff_fused=False,
        ff_expert=experts,
        n_expert=n_expert if experts else 0,
        n_expert_used=used if experts else 0,
        ff_shared=width("ffn_up_shexp"),
        expert_bias="ffn_up_exps.bias" in widths,
        qkv_fused="attn_qkv.weight" in widths,
        mixer=width("ssm_in", "attn_qkv")
        if "ssm_in.weight" in widths or "ssm_conv1d.weight" in widths
        else 0,
    )
