"""Tensors that the engine takes at load and stumbles over when it computes.

llama.cpp checks the shapes of the tensors it asks for, but neither the type of those that ggml's operators
take as F32 only (src1 of binary_op in ggml-cpu/binary-ops.cpp, ggml_ssm_conv, ggml_add_id, ggml_rope_ext,
sinks of ggml_flash_attn_ext) or cannot multiply with at all (type_traits_cpu in ggml-cpu/ggml-cpu.c), nor
that an optional tensor is there which the graph then needs.
"""

from __future__ import annotations

import re

from llmrun.gguf.header import GgufHeader, TensorInfo
from llmrun.gguf.text import printable

# Norms, biases, convolution kernels and the like, except those of token prediction.
_F32_ONLY = re.compile(
    r"(.*norm(\.weight)?|.*\.bias|.*\.ssm_[ad]|.*conv(1d)?\.weight|.*\.attn_sinks\.weight"
    r"|.*\.altup_correct_scale\.weight|.*rope_(freqs|factors_long|factors_short)\.weight)"
)
# Types of whole numbers, of intermediate results, and of double precision: no matrix can be one.
_NO_MATRIX = frozenset({"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"})
_TABLE = "ffn_gate_tid2eid"  # looked up, not multiplied with: experts by token
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")

# Architecture -> what a layer that has the first tensor needs: one of the sets.
_NEEDS: dict[str, tuple[str, tuple[frozenset[str], ...]]] = {
    **dict.fromkeys(
        ("falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"),
        ("ssm_conv1d.weight", (frozenset({"ssm_conv1d.bias"}),)),
    ),
    **dict.fromkeys(
        ("qwen35", "qwen35moe"),
        ("ssm_out.weight", (frozenset({"attn_qkv.weight", "attn_gate.weight"}),)),
    ),
    "qwen3next": (
        "ssm_out.weight",
        (frozenset({"attn_qkv.weight", "attn_gate.weight"}), frozenset({"ssm_in.weight"})),
    ),
    **dict.fromkeys(
        ("phi3", "phimoe"),
        (
            "attn_output.weight",
            (
                frozenset({"attn_qkv.weight"}),
                frozenset({"attn_q.weight", "attn_k.weight", "attn_v.weight"}),
            ),
        ),
    ),
}


def _wrong_type(tensor: TensorInfo) -> str | None:
    """What the engine does with such a tensor, where it cannot be of its type."""
    if tensor.type.name == "F32" or ".nextn." in tensor.name:
        return None
    if _F32_ONLY.fullmatch(tensor.name) is not None:
        return "computes with F32 only there"
    if tensor.type.name in _NO_MATRIX and len(tensor.dims) > 1 and _TABLE not in tensor.name:
        return "cannot multiply with that"
    return None


def _missing(header: GgufHeader) -> str | None:
    if header.arch not in _NEEDS or (header.integer("split.count") or 0) > 1:
        return None
    first, choices = _NEEDS[header.arch]
    layers: dict[str, set[str]] = {}
    for tensor in header.tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match:
            layers.setdefault(match[1], set()).add(match[2])
    for layer, names in layers.items():
        if first in names and not any(choice <= names for choice in choices):
            lacking = ", ".join(f"blk.{layer}.{name}" for name in sorted(choices[0] - names))
            return f"it has blk.{layer}.{first}, but not {lacking}"
    return None


def tensor_fault(header: GgufHeader) -> str | None:
    """The first tensor of a file the engine cannot compute with, in words; None where there is none."""
    for tensor in header.tensors:
        if (wrong := _wrong_type(tensor)) is not None:
            return f"tensor {printable(tensor.name, 80)} is {tensor.type.name}; the engine {wrong}"
    return _missing(header)
