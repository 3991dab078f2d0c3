"""Models of many architectures with zero weights, for tests of memory and of what the engine accepts.

Tensors are holes in the file, so that a model of any size costs nothing on disk; there is no vocabulary,
only its size, unless one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support import vocab
from tests.support.arch_layers import LAYERS, Hyper, is_windowed
from tests.support.gguf_writer import (
    BLOCKS,
    Tensor,
    TensorType,
    Typed,
    Value,
    ValueType,
    array_of,
    write_gguf,
)

_TINY: dict[str, dict[str, Any]] = {
    "gemma2": {"tied": True},
    "gemma3": {"n_layer": 6, "tied": True},
    "gemma3n": {"n_layer": 22, "tied": True},
    "gemma4": {"n_layer": 9, "tied": True, "head_size": 64, "interval": 3, "n_shared": 3},
    "gpt-oss": {"n_layer": 4},
    "deepseek2": {"n_layer": 3, "n_head_kv": 1},
    "glm4moe": {"n_layer": 4, "n_predict": 1},
    "llama4": {"n_layer": 4},
    "cohere2": {"n_layer": 4, "tied": True},
    "granitehybrid": {"n_layer": 3},
    "lfm2": {"n_layer": 3, "tied": True, "d_conv": 3},
    "qwen3next": {"n_layer": 4, "d_state": 32, "dt_rank": 4, "d_inner": 128},
    "qwen35": {"n_layer": 4, "d_state": 32, "dt_rank": 4, "d_inner": 128},
}

ARCHS: tuple[str, ...] = tuple(LAYERS)
"""Architectures `write_arch` knows."""


def hyper(arch: str, **changes: Any) -> Hyper:
    """Hyperparameters of the tiny model of `arch`, with `changes`."""
    return replace(Hyper(arch), **(_TINY.get(arch, {}) | changes))


Edit = Callable[[list[Tensor]], list[Tensor]]


def write_arch(
    path: Path,
    arch: str,
    *,
    vocabulary: bool = False,
    keys: Mapping[str, Value | None] = MappingProxyType({}),
    edit: Edit | None = None,
    **changes: Any,
) -> Path:
    """Write a model; `changes` are fields of `Hyper`. With a `vocabulary` the commands take it.

    `keys` are set in the metadata at last, None takes one away; `edit` may change the tensors.
    """
    h = hyper(arch, **changes)
    metadata: dict[str, Value | None] = dict(_metadata(h))
    if vocabulary:
        more = ((f"t{i}", vocab.TokenType.NORMAL) for i in range(h.n_vocab - len(vocab.BASE)))
        metadata |= dict(vocab.metadata([*vocab.BASE, *more]))
    metadata |= keys
    tensors = list(_tensors(h))
    present = [(key, value) for key, value in metadata.items() if value is not None]
    return write_gguf(path, present, tensors if edit is None else edit(tensors))


def write_split(
    folder: Path, arch: str, n_parts: int, *, edit: Edit | None = None, **changes: Any
) -> list[Path]:
    """Write a model as a set of files, its tensors dealt out in order."""
    h = hyper(arch, **changes)
    tensors = list(_tensors(h)) if edit is None else edit(list(_tensors(h)))
    size = -(-len(tensors) // n_parts)
    paths = []
    for no in range(n_parts):
        keys = _metadata(h) if no == 0 else []
        keys += [
            ("split.no", Typed(ValueType.U16, no)),
            ("split.count", Typed(ValueType.U16, n_parts)),
            ("split.tensors.count", Typed(ValueType.I32, len(tensors))),
        ]
        path = folder / f"{arch}-{no + 1:05d}-of-{n_parts:05d}.gguf"
        paths.append(write_gguf(path, keys, tensors[no * size : (no + 1) * size]))
    return paths


def _tensors(h: Hyper) -> Iterator[Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (h.n_embd, h.n_vocab)}
    shapes["token_embd_norm" if h.arch == "lfm2" else "output_norm"] = (h.n_embd,)
    if not h.tied:
        shapes["output"] = (h.n_embd, h.n_vocab)
    for il in range(h.n_layer):
        shapes |= dict(LAYERS[h.arch](h, il, f"blk.{il}."))
    for name, dims in shapes.items():
        plain = name.removesuffix(".")
        full = plain if name.endswith((".", ".bias")) else f"{name}.weight"
        yield Tensor(full, dims, None, _type(h, full, dims))


def _type(h: Hyper, name: str, dims: tuple[int, ...]) -> TensorType:
    """Matrices take the model's type, or Q8_0 where their rows are no multiple of its block."""
    if len(dims) == 1 or not name.endswith(".weight") or "conv" in name or "norm" in name:
        return TensorType.F32
    fitting = (kind for kind in (h.weights, TensorType.Q8_0) if dims[0] % BLOCKS[kind][0] == 0)
    return next(fitting, TensorType.F32)


def _metadata(h: Hyper) -> list[tuple[str, Value]]:
    mla, head_kv = h.arch == "deepseek2", _heads_kv(h)
    without_heads = h.arch in ("mamba", "mamba2")
    keys: dict[str, Value] = {
        "block_count": h.n_layer,
        "context_length": h.n_ctx,
        "embedding_length": h.n_embd,
        "feed_forward_length": 0 if without_heads else h.n_ff,
        "vocab_size": h.n_vocab,
        "attention.head_count": 0 if without_heads else h.n_head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
    }
    if not without_heads:
        keys |= {
            "attention.head_count_kv": head_kv,
            "attention.key_length": h.kv_rank + h.rot if mla else h.head_size,
            "attention.value_length": h.kv_rank if mla else h.head_size,
            "rope.dimension_count": h.rot,
        }
    keys |= _expert_keys(h) | _window_keys(h) | _state_keys(h) | _other_keys(h) | h.extra
    return [
        ("general.architecture", h.arch),
        ("general.name", f"zero {h.arch}"),
        ("tokenizer.ggml.model", "no_vocab"),
        *((f"{h.arch}.{key}", value) for key, value in keys.items()),
    ]


def _heads_kv(h: Hyper) -> Value:
    if h.arch not in ("granitehybrid", "lfm2"):
        return h.n_head_kv
    return array_of(
        ValueType.I32, [h.n_head_kv if il in h.attention_layers else 0 for il in range(h.n_layer)]
    )


def _expert_keys(h: Hyper) -> dict[str, Value]:
    if h.arch not in ("qwen3moe", "gpt-oss", "deepseek2", "glm4moe", "llama4", "qwen3next"):
        return {}
    keys: dict[str, Value] = {
        "expert_count": h.n_expert,
        "expert_used_count": h.n_expert_used,
        "expert_feed_forward_length": h.n_ff_exp,
        "expert_shared_feed_forward_length": h.n_ff_shexp,
        "expert_shared_count": 1,
        "leading_dense_block_count": h.n_dense,
        "interleave_moe_layer_step": 2,
    }
    if h.n_predict:
        keys["nextn_predict_layers"] = h.n_predict
    return keys


def _window_keys(h: Hyper) -> dict[str, Value]:
    if h.arch not in ("gemma2", "gemma3", "gemma3n", "gemma4", "gpt-oss", "cohere2", "llama4", "phi3"):
        return {}
    keys: dict[str, Value] = {"attention.sliding_window": h.window}
    if h.pattern and h.arch != "gemma4":
        keys["attention.sliding_window_pattern"] = h.pattern
    return keys


def _state_keys(h: Hyper) -> dict[str, Value]:
    if h.arch == "lfm2":
        return {"shortconv.l_cache": h.d_conv}
    if h.arch not in ("mamba", "mamba2", "falcon-h1", "granitehybrid", "qwen3next", "qwen35"):
        return {}
    return {
        "ssm.conv_kernel": h.d_conv,
        "ssm.inner_size": h.d_inner,
        "ssm.state_size": h.d_state,
        "ssm.time_step_rank": h.dt_rank,
        "ssm.group_count": h.n_group,
        "full_attention_interval": h.interval,
    }


def _other_keys(h: Hyper) -> dict[str, Value]:
    match h.arch:
        case "deepseek2":
            return {
                "attention.q_lora_rank": h.q_rank,
                "attention.kv_lora_rank": h.kv_rank,
                "attention.key_length_mla": h.head_k_mla,
                "attention.value_length_mla": h.head_v_mla,
            }
        case "gemma4":
            return {
                "attention.sliding_window_pattern": [is_windowed(h, il) for il in range(h.n_layer)],
                "attention.shared_kv_layers": h.n_shared,
                "attention.key_length_swa": h.head_size_swa,
                "attention.value_length_swa": h.head_size_swa,
                "rope.dimension_count_swa": h.head_size_swa,
                "embedding_length_per_layer_input": 256,
            }
        case "cohere2":
            return {"logit_scale": 1.0}
        case "qwen35":
            quarter = h.rot // 4
            return {"rope.dimension_sections": array_of(ValueType.I32, [quarter, quarter, quarter, 0])}
        case _:
            return {}


_FULL_SIZE: dict[str, dict[str, Any]] = {
    "8B dense": {
        "arch": "llama", "n_layer": 32, "n_embd": 4096, "n_ff": 14336, "n_head": 32, "n_head_kv": 8,
        "head_size": 128, "n_vocab": 128256, "n_ctx": 131072,
    },
    "27B sliding window": {
        "arch": "gemma3", "n_layer": 62, "n_embd": 5376, "n_ff": 21504, "n_head": 32, "n_head_kv": 16,
        "head_size": 128, "window": 1024, "n_vocab": 262208, "n_ctx": 131072,
    },
    "30B MoE": {
        "arch": "qwen3moe", "n_layer": 48, "n_embd": 2048, "n_ff": 6144, "n_head": 32, "n_head_kv": 4,
        "head_size": 128, "n_expert": 128, "n_expert_used": 8, "n_ff_exp": 768, "n_vocab": 151936,
        "n_ctx": 262144,
    },
    "120B MoE": {
        "arch": "gpt-oss", "n_layer": 36, "n_embd": 2880, "n_ff": 2880, "n_head": 64, "n_head_kv": 8,
        "head_size": 64, "window": 128, "n_expert": 128, "n_expert_used": 4, "n_ff_exp": 2880,
        "n_vocab": 201088, "n_ctx": 131072,
    },
    "671B MLA": {
        "arch": "deepseek2", "n_layer": 61, "n_embd": 7168, "n_ff": 18432, "n_head": 128, "n_head_kv": 1,
        "n_rot": 64, "q_rank": 1536, "kv_rank": 512, "head_k_mla": 192, "head_v_mla": 128, "n_dense": 3,
        "n_expert": 256, "n_expert_used": 8, "n_ff_exp": 2048, "n_vocab": 129280, "n_ctx": 163840,
    },
    "80B hybrid": {
        "arch": "qwen3next", "n_layer": 48, "n_embd": 2048, "n_ff": 5120, "n_head": 16, "n_head_kv": 2,
        "head_size": 256, "n_rot": 64, "interval": 4, "n_expert": 512, "n_expert_used": 10, "n_ff_exp": 512,
        "n_ff_shexp": 512, "d_state": 128, "n_group": 16, "dt_rank": 32, "d_inner": 4096, "n_vocab": 151936,
        "n_ctx": 262144,
    },
}  # fmt: skip

FULL_SIZE: tuple[str, ...] = tuple(_FULL_SIZE)
"""Models `write_full_size` knows, by their size and what is special about them."""


def write_full_size(path: Path, name: str, **changes: Any) -> Path:
    """Write a header-only model of full size, with Q4_K matrices unless `changes` says otherwise."""
    return write_arch(path, **({"weights": TensorType.Q4_K} | _FULL_SIZE[name] | changes))
