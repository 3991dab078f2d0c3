"""A small writer of GGUF files, independent of the program's own reader.

It writes what it is told, so that files can also be wrong on purpose. Layout: the GGUF specification in
ggml's docs/gguf.md (magic, version, counts, key/value pairs, tensor table, padding, tensor data).
"""

from __future__ import annotations

import struct
from array import array as float_array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal


class ValueType(IntEnum):
    """Type codes of metadata values."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


class TensorType(IntEnum):
    """Type codes of the tensors that tests write."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    BF16 = 30


# Weights in a block, bytes of a block.
BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q8_1: (32, 36),
    TensorType.Q8_K: (256, 292),
    TensorType.I8: (1, 1),
    TensorType.I16: (1, 2),
    TensorType.I32: (1, 4),
    TensorType.I64: (1, 8),
    TensorType.F64: (1, 8),
    TensorType.Q2_K: (256, 84),
    TensorType.Q3_K: (256, 110),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
}

_FORMATS = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "?",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}

Scalar = str | bytes | bool | int | float


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type named; `items` is the element type of an array."""

    type: ValueType
    value: Scalar | Sequence[Scalar]
    items: ValueType | None = None


Value = Scalar | Sequence[Scalar] | Typed
Metadata = Iterable[tuple[str, Value]]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file. `data` None leaves a hole of the right length (header-only files)."""

    name: str
    dims: tuple[int, ...]
    data: bytes | float_array[float] | None = None
    type: TensorType = TensorType.F32

    @property
    def size_bytes(self) -> int:
        """Length of the data that the type and dimensions call for."""
        n = 1
        for dim in self.dims:
            n *= dim
        block, block_bytes = BLOCKS[self.type]
        return n // block * block_bytes


def array_of(items: ValueType, values: Sequence[Scalar]) -> Typed:
    """An array value with its element type named."""
    return Typed(ValueType.ARRAY, values, items)


def string(text: str | bytes, order: Literal["<", ">"] = "<") -> bytes:
    """Length and bytes of a GGUF string."""
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def _infer(value: Scalar) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, str | bytes):
        return ValueType.STRING
    if isinstance(value, float):
        return ValueType.F32
    if value < 0:
        return ValueType.I32
    return ValueType.U32 if value < 1 << 32 else ValueType.U64


def typed(value: Value) -> Typed:
    """`value` with the type that fits it: bool, string, F32, U32 (I32, U64 where needed) or an array."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, str | bytes | bool | int | float):
        return Typed(_infer(value), value)
    return array_of(_infer(value[0]) if value else ValueType.U32, value)


def _scalar(type_: ValueType, value: object) -> bytes:
    if type_ is ValueType.STRING:
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack("<" + _FORMATS[type_], value)


def key_value(key: str | bytes, value: Value) -> bytes:
    """One metadata entry."""
    t = typed(value)
    head = string(key) + struct.pack("<I", t.type)
    if t.type is not ValueType.ARRAY:
        return head + _scalar(t.type, t.value)
    assert t.items is not None
    assert isinstance(t.value, Sequence)
    if t.items is ValueType.STRING:
        body = b"".join(_scalar(t.items, v) for v in t.value)
    else:
        body = struct.pack(f"<{len(t.value)}{_FORMATS[t.items]}", *t.value)
    return head + struct.pack("<IQ", t.items, len(t.value)) + body


def file_head(n_tensors: int, n_kv: int, version: int = 3, order: Literal["<", ">"] = "<") -> bytes:
    """Magic, version and the two counts."""
    return struct.pack(order + "4sIQQ", b"GGUF", version, n_tensors, n_kv)


def tensor_info(name: str, dims: Sequence[int], type_: int, offset: int) -> bytes:
    """One entry of the tensor table."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)


def padding(size_bytes: int, alignment: int) -> int:
    """Bytes missing to the next multiple of `alignment`."""
    return -size_bytes % alignment


def header_bytes(
    metadata: Metadata, tensors: Sequence[Tensor] = (), *, version: int = 3, alignment: int = 32
) -> bytes:
    """The file up to where the tensor data begins."""
    entries = [key_value(k, v) for k, v in metadata]
    parts = [file_head(len(tensors), len(entries), version), *entries]
    offset = 0
    for t in tensors:
        parts.append(tensor_info(t.name, t.dims, t.type, offset))
        offset += t.size_bytes + padding(t.size_bytes, alignment)
    head = b"".join(parts)
    return head + bytes(padding(len(head), alignment))


def write_gguf(
    path: Path, metadata: Metadata, tensors: Sequence[Tensor] = (), *, version: int = 3, alignment: int = 32
) -> Path:
    """Write a file. Tensors without data become holes, so the file has its full length at no cost."""
    with path.open("wb") as f:
        f.write(header_bytes(metadata, tensors, version=version, alignment=alignment))
        for t in tensors:
            if t.data is None:
                f.seek(t.size_bytes, 1)
            else:
                raw = t.data if isinstance(t.data, bytes) else t.data.tobytes()
                assert len(raw) == t.size_bytes, f"{t.name}: {len(raw)} bytes, type needs {t.size_bytes}"
                f.write(raw)
            f.seek(padding(t.size_bytes, alignment), 1)
        f.truncate(f.tell())
    return path
