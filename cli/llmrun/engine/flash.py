"""Which devices run flash attention on a K/V cache of given types.

Backends have kernels for some pairs of types only, which ones depends on the build. Where flash attention is
asked for and its device has no kernel, the scheduler quietly computes it on the CPU, many times slower
(llama.cpp#28455). So the device itself is asked, with the operation the model would run: a prefill and a
decode step (build_attn_mha in src/llama-graph.cpp). RPC servers agree to everything (ggml-rpc.cpp).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmrun.engine.bindings import device_handles, devices, native_function
from llmrun.engine.kv_types import ggml_type

TypePair = tuple[str, str]

_F16, _F32 = 1, 0
_CELLS = 1024
_TOKENS = (512, 1)
_POOL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of a layer and the numbers in each."""

    heads: int
    kv_heads: int
    head_k: int
    head_v: int


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def flash_attention_types(
    names: Iterable[str], shapes: Sequence[AttentionShape], pairs: Sequence[TypePair]
) -> dict[str, list[TypePair]]:
    """The (K, V) types among `pairs` for which each of the named devices has flash attention at all shapes.

    Raises:
        UsageError: an unknown cache type.
        EngineFailure: the library lacks a function of ggml.
    """
    handles = dict(zip((device.name for device in devices()), device_handles(), strict=True))
    supports = native_function(
        "ggml_backend_dev_supports_op", ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p
    )
    init = native_function("ggml_init", ctypes.c_void_p, _InitParams)
    free = native_function("ggml_free", None, ctypes.c_void_p)

    def runs(device: int, pair: TypePair, shape: AttentionShape, n_tokens: int) -> bool:
        pool = init(_InitParams(_POOL_BYTES, None, True))
        try:
            return bool(supports(device, _node(pool, shape, pair, n_tokens)))
        finally:
            free(pool)

    questions = [(shape, n_tokens) for shape in shapes for n_tokens in _TOKENS]
    return {
        name: [pair for pair in pairs if all(runs(handles[name], pair, *each) for each in questions)]
        for name in names
    }


def _node(pool: int, shape: AttentionShape, pair: TypePair, n_tokens: int) -> int:
    """The operation on tensors that have no memory; f32 is converted first, as in the model's graph."""
    tensor = native_function(
        "ggml_new_tensor_4d", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, *(ctypes.c_int64,) * 4
    )
    attention = native_function(
        "ggml_flash_attn_ext", ctypes.c_void_p, *(ctypes.c_void_p,) * 5, *(ctypes.c_float,) * 3
    )
    type_k, type_v = (_F16 if kind == _F32 else kind for kind in map(ggml_type, pair))
    q = tensor(pool, _F32, shape.head_k, n_tokens, shape.heads, 1)
    k = tensor(pool, type_k, shape.head_k, _CELLS, shape.kv_heads, 1)
    v = tensor(pool, type_v, shape.head_v, _CELLS, shape.kv_heads, 1)
    mask = tensor(pool, _F16, _CELLS, n_tokens, 1, 1)
    node: Any = attention(pool, q, k, v, mask, shape.head_k**-0.5, 0.0, 0.0)
    return int(node)
