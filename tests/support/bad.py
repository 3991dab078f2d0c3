"""Broken, hostile and wrong files, one per trap of a GGUF reader.

`BAD_FILES` maps a name to the bytes of a file that must be refused. `OTHER_KINDS` are sound files that
are no text-generation models. `cut_files` cuts a real model.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support import vocab
from tests.support.gguf_writer import (
    Tensor,
    Value,
    ValueType,
    array_of,
    file_head,
    header_bytes,
    key_value,
    string,
    tensor_info,
)

_ARCH = key_value("general.architecture", "llama")
_TAIL = bytes(64)
_TOKENS = vocab.BASE[:32]


def _value_head(key: str, *codes: int) -> bytes:
    return string(key) + struct.pack(f"<{len(codes)}I", *codes)


def _with(key: str, value: Value) -> bytes:
    return file_head(0, 2) + _ARCH + key_value(key, value)


def _one_tensor(dims: list[int], type_: int = 0, offset: int = 0, data: bytes = _TAIL) -> bytes:
    head = file_head(1, 1) + _ARCH + tensor_info("token_embd.weight", dims, type_, offset)
    return head + bytes(-len(head) % 32) + data


def _hyperparameters(**changes: Value) -> list[tuple[str, Value]]:
    keys: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 8,
    }
    keys |= dict(vocab.metadata(_TOKENS))
    keys |= {f"llama.{name.replace('__', '.')}": value for name, value in changes.items()}
    return list(keys.items())


def _tokenizer(**changes: Value) -> bytes:
    keys = dict(_hyperparameters()) | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return header_bytes(keys.items(), [Tensor("token_embd.weight", (32, 32), bytes(4096))]) + bytes(4096)


def _model(**changes: Value) -> bytes:
    tensor = Tensor("token_embd.weight", (32, 32), bytes(4096))
    return header_bytes(_hyperparameters(**changes), [tensor]) + bytes(4096)


SOUND: bytes = _model()
"""The file that the entries of `UNRUNNABLE` differ from in one point; nothing in its header is wrong."""

NOT_GGUF: dict[str, bytes] = {
    "empty": b"",
    "html": b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>blocked</body></html>",
    "html_late": b"\n\n  <HTML lang='en'><body>404</body></HTML>",
    "json_error": b'{"error":"Invalid username or password."}',
    "lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize 98362432\n"
    % (b"0" * 64),
    "old_ggjt": b"tjgg\x03\0\0\0" + _TAIL,
    "old_ggml": b"lmgg" + _TAIL,
    "old_ggmf": b"fmgg\x01\0\0\0" + _TAIL,
    "old_ggla": b"algg\x01\0\0\0" + _TAIL,
    "zip": b"PK\x03\x04" + _TAIL,
    "safetensors": struct.pack("<Q", 2) + b"{}" + _TAIL,
    "noise": bytes(range(256)),
}

BROKEN: dict[str, bytes] = {
    "magic_only": b"GGUF",
    "version_99": file_head(0, 1, 99) + _ARCH,
    "version_1": file_head(0, 1, 1) + _ARCH,
    "version_0": file_head(0, 1, 0) + _ARCH,
    "big_endian": file_head(0, 0, 3, ">"),
    "kv_count_2e62": file_head(0, 2**62),
    "kv_count_2e40": file_head(0, 2**40) + _ARCH,
    "tensor_count_2e62": file_head(2**62, 1) + _ARCH,
    "tensor_count_2e36": file_head(2**36, 1) + _ARCH,
    "string_len_2e63": file_head(0, 1) + struct.pack("<Q", 2**63) + b"x",
    "string_len_2e29": file_head(0, 1) + struct.pack("<Q", 2**29) + b"x",
    "value_len_2e62": file_head(0, 1) + _value_head("general.name", 8) + struct.pack("<Q", 2**62),
    "array_len_2e60": file_head(0, 1) + _value_head("a", 9, 4) + struct.pack("<Q", 2**60),
    "array_len_2e64": file_head(0, 1) + _value_head("a", 9, 4) + struct.pack("<Q", 2**64 - 1),
    "string_array_2e60": file_head(0, 1) + _value_head("a", 9, 8) + struct.pack("<Q", 2**60),
    "array_nested": file_head(0, 1) + _value_head("a", 9, 9) + struct.pack("<QIQ", 1, 9, 1),
    "array_type_77": file_head(0, 1) + _value_head("a", 9, 77) + struct.pack("<Q", 1) + _TAIL,
    "kv_type_77": file_head(0, 1) + _value_head("general.architecture", 77) + _TAIL,
    "kv_empty_key": file_head(0, 1) + key_value("", "x"),
    "kv_duplicate": file_head(0, 2) + _ARCH + _ARCH,
    "key_not_utf8": file_head(0, 2) + _ARCH + key_value(b"\xff\xfe", "x"),
    "dim_zero": _one_tensor([0, 32]),
    "dim_negative": _one_tensor([2**63, 32]),
    "dim_product_2e64": _one_tensor([2**32, 2**32]),
    "dims_9": _one_tensor([1] * 9),
    "dims_none": _one_tensor([]),
    "dims_2e32": file_head(1, 1) + _ARCH + string("t") + struct.pack("<I", 2**32 - 1) + _TAIL,
    "row_not_a_block": _one_tensor([31, 32], 2, data=bytes(4096)),
    "tensor_type_200": _one_tensor([32, 32], 200, data=bytes(4096)),
    "tensor_offset_2e62": _one_tensor([32, 32], 0, 2**62, bytes(4096)),
    "tensor_offset_odd": _one_tensor([32, 32], 0, 7, bytes(8192)),
    "tensor_overlap": file_head(2, 1)
    + _ARCH
    + tensor_info("a", [32, 32], 0, 0)
    + tensor_info("b", [32, 32], 0, 32)
    + bytes(8192),
    "tensor_twice": file_head(2, 1)
    + _ARCH
    + tensor_info("a", [32], 0, 0)
    + tensor_info("a", [32], 0, 128)
    + bytes(8192),
    "align_zero": _with("general.alignment", 0),
    "align_3": _with("general.alignment", 3),
    "align_string": _with("general.alignment", "32"),
    "align_2e31": _with("general.alignment", 2**31),
}

UNRUNNABLE: dict[str, bytes] = {
    "arch_missing": header_bytes([("general.name", "x")]),
    "arch_integer": header_bytes([("general.architecture", 7)]),
    "arch_empty": header_bytes([("general.architecture", "")]),
    "arch_key_escape": header_bytes([("general.architecture", "x\x1b]0;owned\x07y")]),
    "no_tensors": header_bytes(_hyperparameters()),
    "blocks_zero": _model(block_count=0),
    "blocks_2e31": _model(block_count=2**31),
    "blocks_string": _model(block_count="two"),
    "head_count_zero": _model(attention__head_count=0),
    "head_count_2e32": _model(attention__head_count=2**32 - 1),
    "heads_uneven": _model(attention__head_count=5),
    "kv_heads_uneven": _model(attention__head_count_kv=3),
    "heads_array_short": _model(attention__head_count=array_of(ValueType.U32, [])),
    "embedding_zero": _model(embedding_length=0),
    "embedding_missing": header_bytes(
        [kv for kv in _hyperparameters() if kv[0] != "llama.embedding_length"],
        [Tensor("token_embd.weight", (32, 32), bytes(4096))],
    )
    + bytes(4096),
    "context_negative": _model(context_length=-1),
    "eps_string": _model(attention__layer_norm_rms_epsilon="small"),
    "rope_huge": _model(rope__dimension_count=2**31),
    "rope_zero": _model(rope__dimension_count=0),
    "rope_odd": _model(rope__dimension_count=7),
    "rope_wider_than_a_head": _model(rope__dimension_count=10),
    "rope_scaling_unknown": _model(rope__scaling__type="zebra"),
    "experts_2e31": _model(expert_count=2**31),
    "experts_used_beyond_all": _model(expert_count=4, expert_used_count=5),
    "no_vocabulary": _tokenizer(model="no_vocab"),
    "tokens_of_numbers": _tokenizer(tokens=[1, 2, 3]),
    "tokens_text": _tokenizer(tokens="abc"),
    "token_twice": _tokenizer(tokens=[*(f"t{i}" for i in range(31)), "t0"]),
    "scores_short": _tokenizer(scores=[0.5]),
    "scores_of_text": _tokenizer(scores=["a"] * 32),
    "token_types_short": _tokenizer(token_type=[1, 1]),
    "merges_of_numbers": _tokenizer(merges=[1, 2]),
}

BAD_FILES: dict[str, bytes] = NOT_GGUF | BROKEN | UNRUNNABLE


def _kind(arch: str, *extra: tuple[str, Value]) -> bytes:
    keys = dict(_hyperparameters()) | {"general.architecture": arch} | dict(extra)
    keys |= {k.replace("llama.", f"{arch}.", 1): v for k, v in keys.items() if k.startswith("llama.")}
    return header_bytes(keys.items(), [Tensor("token_embd.weight", (32, 32), bytes(4096))]) + bytes(4096)


OTHER_KINDS: dict[str, bytes] = {
    "bert": _kind("bert"),
    "nomic-bert": _kind("nomic-bert"),
    "t5": _kind("t5"),
    "t5encoder": _kind("t5encoder"),
    "clip": _kind("clip", ("general.type", "mmproj")),
    "imatrix": _kind("llama", ("general.type", "imatrix")),
    "adapter": _kind("llama", ("general.type", "adapter"), ("adapter.type", "lora")),
    "vocabulary": header_bytes(_hyperparameters()),
}

UNKNOWN_ARCH: bytes = _kind("zebra")
"""Complete and plausible, of an architecture that no engine knows."""


def write_bad_files(folder: Path) -> dict[str, Path]:
    """Write all of them into `folder`; name -> path."""
    paths = {name: folder / f"{name}.gguf" for name in BAD_FILES}
    for name, path in paths.items():
        path.write_bytes(BAD_FILES[name])
    return paths


def cut_files(real: Path, folder: Path, in_header: int = 1_000_000, in_data: int = 4_000_000) -> list[Path]:
    """Copies of the model `real` that end inside the header and inside the tensor data."""
    with real.open("rb") as f:
        start = f.read(in_data)
    paths = [folder / "cut_in_header.gguf", folder / "cut_in_data.gguf"]
    paths[0].write_bytes(start[:in_header])
    paths[1].write_bytes(start)
    return paths
