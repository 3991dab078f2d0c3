"""Bytes -> `GgufHeader`, by the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little endian.

A file begins with magic, version and two counts; then key/value pairs, the tensor table, padding, and the
tensor data. Nothing is trusted: a length is checked against the bytes at hand before it is used, memory is
only ever taken for bytes that were read, and the constants below bound the work. The rules for tensors are
those of the engine's own loader (ggml/src/gguf.cpp), so that what passes here is not refused or, worse,
believed there.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from llmrun.errors import ModelNotFound, NotAModel
from llmrun.gguf.header import GgufHeader, LazyArray, MetaValue, TensorInfo
from llmrun.gguf.identify import MAGIC, not_gguf
from llmrun.gguf.text import printable
from llmrun.gguf.types import REMOVED_TENSOR_TYPES, SCALAR_FORMATS, TENSOR_TYPES, ValueType

MAX_HEADER_BYTES = 64 << 20
MAX_METADATA_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ARRAY_ITEMS = 1 << 24
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSOR_NAME_BYTES = 127
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
MAX_TENSOR_BYTES = (1 << 63) - 1
DEFAULT_ALIGNMENT = 32
SUPPORTED_VERSIONS = (2, 3)

_FIRST_READ_BYTES = 8 << 20
_ENOUGH_STRINGS = 64  # to guess the length of the rest from
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {code: struct.Struct("<" + fmt) for code, fmt in SCALAR_FORMATS.items()}
_AGAIN = "the file is damaged or was made to mislead; download it again from its source"


class NeedMoreBytes(Exception):
    """The prefix ends inside the header: at least `needed_bytes` of the file are needed to go on.

    `likely_bytes` is about how many, where a list of texts goes on as it began.
    """

    def __init__(self, needed_bytes: int, likely_bytes: int = 0) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes
        self.likely_bytes = max(needed_bytes, likely_bytes)


class _Broken(Exception):
    """The header contradicts the format; the text says how."""


class _Cursor:
    """A position in the bytes at hand; reading past them raises `NeedMoreBytes`."""

    def __init__(self, data: bytes) -> None:
        self.data, self.pos = data, 0

    def take(self, n_bytes: int) -> int:
        """Step over `n_bytes` and return where they start."""
        start, self.pos = self.pos, self.pos + n_bytes
        if self.pos > len(self.data):
            raise NeedMoreBytes(self.pos)
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8))[0]
        return value

    def raw_string(self, limit_bytes: int, what: str) -> bytes:
        n = self.u64()
        if n > limit_bytes:
            raise _Broken(f"a {what} claims {n:,} bytes, the limit is {limit_bytes:,}")
        start = self.take(n)
        return self.data[start : self.pos]

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings; the one loop that runs over whole vocabularies."""
        data, pos, read = self.data, self.pos, _U64.unpack_from
        done = 0
        try:
            for done in range(count):  # noqa: B007 tells how far it came
                pos += 8 + read(data, pos)[0]
        except (struct.error, OverflowError):
            left = count - done
            likely = pos + left * (pos - self.pos) // done if done >= _ENOUGH_STRINGS else 0
            raise NeedMoreBytes(pos + 8 * left, likely) from None
        self.take(pos - self.pos)


def _array(cursor: _Cursor, key: str) -> LazyArray:
    code, length = cursor.u32(), cursor.u64()
    if code not in SCALAR_FORMATS and code != ValueType.STRING:
        raise _Broken(f"the array {key} has items of type {code}, which is not allowed")
    if length > MAX_ARRAY_ITEMS:
        raise _Broken(f"the array {key} claims {length:,} items, the limit is {MAX_ARRAY_ITEMS:,}")
    start = cursor.pos
    if code == ValueType.STRING:
        cursor.skip_strings(length)
    else:
        cursor.take(length * _SCALARS[code].size)
    return LazyArray(cursor.data, start, length, ValueType(code))


def _value(cursor: _Cursor, key: str) -> MetaValue:
    code = cursor.u32()
    if code == ValueType.STRING:
        return cursor.raw_string(MAX_HEADER_BYTES, "text").decode(errors="replace")
    if code == ValueType.ARRAY:
        return _array(cursor, key)
    scalar = _SCALARS.get(code)
    if scalar is None:
        raise _Broken(f"the key {key} has a value of type {code}, which does not exist")
    value: MetaValue = scalar.unpack_from(cursor.data, cursor.take(scalar.size))[0]
    return value


def _name(cursor: _Cursor, limit_bytes: int, what: str) -> str:
    raw = cursor.raw_string(limit_bytes, what)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise _Broken(f"a {what} is not UTF-8 text") from None
    if not name:
        raise _Broken(f"a {what} is empty")
    return name


def _metadata(cursor: _Cursor, count: int) -> Iterator[tuple[str, MetaValue]]:
    if count > MAX_METADATA_ENTRIES:
        raise _Broken(f"the header claims {count:,} metadata entries, the limit is {MAX_METADATA_ENTRIES:,}")
    known: set[str] = set()
    for _ in range(count):
        key = _name(cursor, MAX_KEY_BYTES, "metadata key")
        shown = printable(key, 80)
        if key in known:
            raise _Broken(f"the key {shown} occurs twice")
        known.add(key)
        yield key, _value(cursor, shown)


def _alignment(metadata: dict[str, MetaValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Broken("general.alignment is not a whole number")
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise _Broken(f"general.alignment is {value:,}, not a power of two up to {MAX_ALIGNMENT:,}")
    return value


def _tensor(cursor: _Cursor, expected_offset: int) -> TensorInfo:
    name = _name(cursor, MAX_TENSOR_NAME_BYTES, "tensor name")
    shown = printable(name, 80)
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        raise _Broken(f"tensor {shown} has {n_dims:,} dimensions, allowed are 1 to {MAX_DIMS}")
    dims: tuple[int, ...] = struct.unpack_from(f"<{n_dims}Q", cursor.data, cursor.take(8 * n_dims))
    code, offset = cursor.u32(), cursor.u64()
    kind = TENSOR_TYPES.get(code)
    if kind is None:
        removed = REMOVED_TENSOR_TYPES.get(code)
        why = f"{removed}, which the engine has dropped" if removed else f"{code}, which does not exist"
        raise _Broken(f"tensor {shown} has type {why}")
    n_params = 1
    for dim in dims:
        n_params *= dim
    size_bytes = n_params // kind.block * kind.block_bytes
    if n_params < 1 or size_bytes > MAX_TENSOR_BYTES or n_params > MAX_TENSOR_BYTES:
        raise _Broken(f"tensor {shown} has the impossible shape {' x '.join(f'{d:,}' for d in dims)}")
    if dims[0] % kind.block:
        raise _Broken(
            f"tensor {shown} of type {kind.name} has rows of {dims[0]:,}, not a multiple of {kind.block}"
        )
    if offset != expected_offset:
        raise _Broken(f"tensor {shown} lies at offset {offset:,} where {expected_offset:,} is due")
    return TensorInfo(name, dims, kind, offset, n_params, size_bytes)


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    if count > MAX_TENSORS:
        raise _Broken(f"the header claims {count:,} tensors, the limit is {MAX_TENSORS:,}")
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    offset = 0
    for _ in range(count):
        tensor = _tensor(cursor, offset)
        if tensor.name in names:
            raise _Broken(f"the tensor {printable(tensor.name, 80)} occurs twice")
        names.add(tensor.name)
        tensors.append(tensor)
        offset += tensor.size_bytes + -tensor.size_bytes % alignment
    return tuple(tensors)


def _version(cursor: _Cursor) -> int:
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise _Broken("it is big endian, made for another kind of machine")
    if version == 1:
        raise _Broken("it has GGUF version 1, an early layout that is no longer supported")
    if version not in SUPPORTED_VERSIONS:
        raise _Broken(f"it has GGUF version {version:,}; this program reads versions 2 and 3")
    return version


def parse_header(data: bytes, *, name: str = "file", file_bytes: int | None = None) -> GgufHeader:
    """The header in `data`, the first bytes of a file called `name` in messages.

    Raises `NeedMoreBytes` where `data` ends inside the header and the file may go on (`file_bytes` None or
    larger), and `NotAModel` where it is no GGUF file, is broken, or ends inside the header.
    """
    head = data[: len(MAGIC)]
    if head != MAGIC[: len(head)] or (not head and file_bytes == 0):
        raise not_gguf(name, data)
    cursor = _Cursor(data)
    try:
        cursor.take(len(MAGIC))
        version = _version(cursor)
        n_tensors, n_metadata = cursor.u64(), cursor.u64()
        metadata = dict(_metadata(cursor, n_metadata))
        alignment = _alignment(metadata)
        tensors = _tensors(cursor, n_tensors, alignment)
    except NeedMoreBytes as more:
        if more.needed_bytes > MAX_HEADER_BYTES:
            text = f"its header claims {more.needed_bytes:,} bytes, the limit is {MAX_HEADER_BYTES:,}"
            raise _broken(name, text) from None
        if file_bytes is not None and file_bytes <= len(data):
            raise incomplete(name, file_bytes, more.needed_bytes) from None
        raise
    except _Broken as why:
        raise _broken(name, str(why)) from None
    end = cursor.pos
    data_offset = end + -end % alignment if tensors else end
    return GgufHeader(version, alignment, MappingProxyType(metadata), tensors, data_offset, file_bytes)


def peek(data: bytes) -> Mapping[str, MetaValue]:
    """The metadata that `data`, the first bytes of a file, holds, as far as it can be read; never raises."""
    found: dict[str, MetaValue] = {}
    cursor = _Cursor(data)
    if data[: len(MAGIC)] == MAGIC:
        with suppress(NeedMoreBytes, _Broken):
            cursor.take(len(MAGIC))
            _version(cursor)
            cursor.take(8)
            found.update(_metadata(cursor, cursor.u64()))
    return found


def _broken(name: str, why: str) -> NotAModel:
    return NotAModel(f"{printable(name)} is not a usable GGUF file: {why}", _AGAIN)


def incomplete(name: str, has_bytes: int, needed_bytes: int) -> NotAModel:
    """The error for a file that ends before its content does."""
    message = (
        f"{printable(name)} is incomplete: it has {has_bytes:,} bytes, its header needs {needed_bytes:,}"
    )
    return NotAModel(message, "download it again; the transfer was cut short")


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`; only as much of the file is read as the header takes.

    Raises `ModelNotFound` where there is no readable file, `NotAModel` where it is something else (folder,
    pipe, web page, ...), broken, or ends inside its header. Never waits on a pipe.
    """
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    name = os.fspath(path)
    shown = printable(name)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise NotAModel(f"{shown} is a folder, not a model file", "give the path of a .gguf file in it")
        if not stat.S_ISREG(status.st_mode):
            raise NotAModel(f"{shown} is a {_special(status.st_mode)}, not a file", "save it as a file first")
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return _read_growing(file.read, file.seek, size_bytes, name)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"there is no file {shown}", "check the path") from None
    except PermissionError:
        raise ModelNotFound(
            f"{shown} cannot be read: permission denied", "give yourself read permission for it (chmod u+r)"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelNotFound(f"{shown} cannot be read: {printable(reason)}", "check the path") from None


def _special(mode: int) -> str:
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISFIFO, "named pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "character device"),
        (stat.S_ISBLK, "block device"),
    )
    return next((text for test, text in kinds if test(mode)), "special file")


def _read_growing(
    read: Callable[[int], bytes | None], seek: Callable[[int], int], size_bytes: int, name: str
) -> GgufHeader:
    want = _FIRST_READ_BYTES
    while True:
        seek(0)
        data = read(min(want, size_bytes)) or b""
        if len(data) < min(want, size_bytes):
            size_bytes = len(data)
        try:
            return parse_header(data, name=name, file_bytes=size_bytes)
        except NeedMoreBytes as more:
            want = max(4 * want, more.needed_bytes)
