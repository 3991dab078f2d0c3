"""The parsed header of a GGUF file, as values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from llmrun.gguf.types import SCALAR_FORMATS, TensorType, ValueType

Scalar = bool | int | float | str

_LENGTH = struct.Struct("<Q")


class LazyArray(Sequence[Scalar]):
    """A metadata array that stays in its bytes until asked.

    Iterating decodes one element at a time. Indexing is direct for numbers; for strings it walks from the
    start. Text that is not UTF-8 is decoded with replacement characters.
    """

    __slots__ = ("_data", "_length", "_start", "item_type")

    def __init__(self, data: bytes, start: int, length: int, item_type: ValueType) -> None:
        self._data, self._start, self._length = data, start, length
        self.item_type = item_type

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Scalar]:
        return self._strings() if self.item_type is ValueType.STRING else self._numbers(0, self._length)

    def _numbers(self, start: int, stop: int) -> Iterator[Scalar]:
        item = struct.Struct("<" + SCALAR_FORMATS[self.item_type])
        offset = self._start
        for i in range(start, stop):
            (value,) = item.unpack_from(self._data, offset + i * item.size)
            yield value

    def _strings(self) -> Iterator[str]:
        pos, data = self._start, self._data
        for _ in range(self._length):
            (n,) = _LENGTH.unpack_from(data, pos)
            yield data[pos + 8 : pos + 8 + n].decode(errors="replace")
            pos += 8 + n

    def _string_at(self, index: int) -> str:
        pos = self._start
        for _ in range(index):
            pos += 8 + _LENGTH.unpack_from(self._data, pos)[0]
        (n,) = _LENGTH.unpack_from(self._data, pos)
        return self._data[pos + 8 : pos + 8 + n].decode(errors="replace")

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | list[Scalar]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(index)
        if self.item_type is ValueType.STRING:
            return self._string_at(at)
        return next(self._numbers(at, at + 1))

    def repeated_text(self) -> str | None:
        """A text other than the empty one that occurs more than once, if there is any."""
        data, pos, read = self._data, self._start, _LENGTH.unpack_from
        texts: list[bytes] = []
        for _ in range(self._length if self.item_type is ValueType.STRING else 0):
            end = pos + 8 + read(data, pos)[0]
            texts.append(data[pos + 8 : end])
            pos = end
        if len(set(texts)) == len(texts):
            return None
        seen: set[bytes] = set()
        for text in filter(None, texts):
            if text in seen:
                return text.decode(errors="replace")
            seen.add(text)
        return None

    def __repr__(self) -> str:
        return f"LazyArray({self._length} x {self.item_type.name})"


MetaValue = Scalar | LazyArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table. `offset` counts bytes from the start of the data section."""

    name: str
    dims: tuple[int, ...]
    type: TensorType
    offset: int
    n_params: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything before the tensor data.

    `data_offset` is where that data starts; `file_bytes` the length of the file, None where only a prefix
    was at hand and the length is unknown.
    """

    version: int
    alignment: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_bytes: int | None

    @property
    def needed_bytes(self) -> int:
        """Length the file must have at least to hold every tensor."""
        if not self.tensors:
            return self.data_offset
        last = self.tensors[-1]
        return self.data_offset + last.offset + last.size_bytes

    @property
    def arch(self) -> str:
        """Architecture name, empty where the file names none."""
        return self.text("general.architecture") or ""

    def text(self, key: str) -> str | None:
        """The value of `key` if it is text."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """The value of `key` if it is a whole number."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> int | float | None:
        """The value of `key` if it is a number."""
        value = self.metadata.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool | None:
        """The value of `key` if it is true or false."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def array(self, key: str) -> LazyArray | None:
        """The value of `key` if it is an array."""
        value = self.metadata.get(key)
        return value if isinstance(value, LazyArray) else None
