"""Writes the model the compute probe decodes: one llama block with Q4_0 matrices and no vocabulary."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

_VOCAB, _EMBD, _FF, _HEADS = 64, 256, 512, 4
_STRING, _U32, _F32_VALUE = 8, 4, 6  # GGUF value types
_F32, _Q4_0 = 0, 2  # ggml tensor types
_Q4_0_BLOCK = 32  # values; stored as an f16 scale and 16 bytes
_ALIGNMENT = 32


def write_q4_0_model(path: Path) -> None:
    """Write the file (about 350 kB); equal bytes each time."""
    rng = random.Random(0)
    matrices: dict[str, tuple[int, ...]] = {
        "token_embd": (_EMBD, _VOCAB),
        "output": (_EMBD, _VOCAB),
        **{f"blk.0.attn_{name}": (_EMBD, _EMBD) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (_EMBD, _FF),
        "blk.0.ffn_up": (_EMBD, _FF),
        "blk.0.ffn_down": (_FF, _EMBD),
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    tensors = [(name, dims, _Q4_0, _q4_0(rng, math.prod(dims))) for name, dims in matrices.items()]
    tensors += [(name, (_EMBD,), _F32, struct.pack("<f", 1.0) * _EMBD) for name in norms]
    metadata = _metadata()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata)
    offset, data = 0, b""
    for name, dims, kind, raw in tensors:
        head += _string(f"{name}.weight") + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", kind, offset)
        data += raw + bytes(-len(raw) % _ALIGNMENT)
        offset = len(data)
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def _metadata() -> list[bytes]:
    numbers = {
        "block_count": 1,
        "context_length": 256,
        "embedding_length": _EMBD,
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "rope.dimension_count": _EMBD // _HEADS,
        "vocab_size": _VOCAB,
    }
    pairs = [_string(f"llama.{key}") + struct.pack("<II", _U32, value) for key, value in numbers.items()]
    pairs.append(_string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", _F32_VALUE, 1e-5))
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"}
    return pairs + [_string(key) + struct.pack("<I", _STRING) + _string(text) for key, text in texts.items()]


def _q4_0(rng: random.Random, count: int) -> bytes:
    block = struct.pack("<e", 0.02)
    return b"".join(block + rng.randbytes(_Q4_0_BLOCK // 2) for _ in range(count // _Q4_0_BLOCK))


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
