"""The header reader: sound files by the gguf package as oracle, broken ones by the error they get."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import ModelNotFound, NotAModel
from llmrun.gguf.header import LazyArray
from llmrun.gguf.reader import MAX_HEADER_BYTES, NeedMoreBytes, parse_header, peek, read_header
from llmrun.gguf.types import TENSOR_TYPES, ValueType

from tests.support import gguf_writer as gw
from tests.support.bad import BROKEN, NOT_GGUF, cut_files
from tests.support.gguf_writer import Tensor, TensorType, Typed, array_of, header_bytes, write_gguf
from tests.support.models import gemma_path, smollm2_path

EVERY_TYPE: list[tuple[str, gw.Value]] = [
    ("general.architecture", "llama"),
    ("t.u8", Typed(gw.ValueType.U8, 255)),
    ("t.i8", Typed(gw.ValueType.I8, -128)),
    ("t.u16", Typed(gw.ValueType.U16, 65535)),
    ("t.i16", Typed(gw.ValueType.I16, -32768)),
    ("t.u32", Typed(gw.ValueType.U32, 2**32 - 1)),
    ("t.i32", Typed(gw.ValueType.I32, -(2**31))),
    ("t.f32", Typed(gw.ValueType.F32, 0.5)),
    ("t.bool", True),
    ("t.text", "grüße 日本 🦙"),
    ("t.u64", Typed(gw.ValueType.U64, 2**64 - 1)),
    ("t.i64", Typed(gw.ValueType.I64, -(2**63))),
    ("t.f64", Typed(gw.ValueType.F64, 1e-300)),
    ("t.texts", ["a", "", "ß", "🦙" * 50]),
    ("t.numbers", array_of(gw.ValueType.I16, [-1, 0, 1])),
    ("t.flags", array_of(gw.ValueType.BOOL, [True, False, True])),
    ("t.none", array_of(gw.ValueType.STRING, [])),
]


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_comes_back(version: int) -> None:
    header = parse_header(header_bytes(EVERY_TYPE, version=version))
    assert header.version == version
    assert list(header.metadata) == [key for key, _ in EVERY_TYPE]
    for key, written in EVERY_TYPE:
        expected = written.value if isinstance(written, Typed) else written
        read = header.metadata[key]
        assert (list(read) if isinstance(read, LazyArray) else read) == expected, key


def test_arrays_index_like_lists() -> None:
    header = parse_header(header_bytes(EVERY_TYPE))
    for key in ("t.texts", "t.numbers", "t.flags"):
        array = header.array(key)
        assert array is not None
        whole = list(array)
        assert [array[i] for i in range(-len(whole), len(whole))] == whole + whole
        assert array[1:] == whole[1:]
        with pytest.raises(IndexError):
            array[len(whole)]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensor_table_and_full_length(tmp_path: Path, alignment: int) -> None:
    tensors = [Tensor(f"t{int(t)}", (256, 3), None, t) for t in TensorType] + [Tensor("v", (5,), None)]
    keys: list[tuple[str, gw.Value]] = [("general.architecture", "llama"), ("general.alignment", alignment)]
    path = write_gguf(tmp_path / "m.gguf", keys, tensors, alignment=alignment)
    header = read_header(path)
    assert [(t.name, t.dims, t.size_bytes) for t in header.tensors] == [
        (t.name, t.dims, t.size_bytes) for t in tensors
    ]
    assert [t.type.name for t in header.tensors[:-1]] == [t.name for t in TensorType]
    assert header.data_offset % alignment == 0
    assert header.needed_bytes <= path.stat().st_size < header.needed_bytes + alignment


class _GgufInit(ctypes.Structure):
    """`gguf_init_params` of the engine's library."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    """The engine's own reader, as oracle."""
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    lib = ctypes.CDLL(str(next((Path(spec.origin).parent / "lib").glob("libggml-base.so*"))))
    for name, result in (
        ("gguf_init_from_file", ctypes.c_void_p),
        ("gguf_get_n_kv", ctypes.c_int64),
        ("gguf_get_n_tensors", ctypes.c_int64),
        ("gguf_get_data_offset", ctypes.c_size_t),
        ("gguf_get_key", ctypes.c_char_p),
        ("gguf_get_tensor_name", ctypes.c_char_p),
        ("gguf_get_tensor_offset", ctypes.c_size_t),
        ("gguf_get_tensor_size", ctypes.c_size_t),
        ("ggml_type_name", ctypes.c_char_p),
        ("ggml_blck_size", ctypes.c_int64),
        ("ggml_type_size", ctypes.c_size_t),
    ):
        getattr(lib, name).restype = result
    return lib


@pytest.mark.parametrize("model", [smollm2_path, gemma_path])
def test_real_headers_match_the_engine_library(ggml: ctypes.CDLL, model: Callable[[], Path]) -> None:
    path = model()
    header = read_header(path)
    assert header.needed_bytes == header.file_bytes == path.stat().st_size
    ctx = ctypes.c_void_p(ggml.gguf_init_from_file(os.fsencode(path), _GgufInit(True, None)))
    try:
        keys = [ggml.gguf_get_key(ctx, ctypes.c_int64(i)).decode() for i in range(ggml.gguf_get_n_kv(ctx))]
        assert list(header.metadata) == keys
        assert header.data_offset == ggml.gguf_get_data_offset(ctx)
        assert len(header.tensors) == ggml.gguf_get_n_tensors(ctx)
        for i, tensor in enumerate(header.tensors):
            at = ctypes.c_int64(i)
            assert tensor.name == ggml.gguf_get_tensor_name(ctx, at).decode()
            assert tensor.offset == ggml.gguf_get_tensor_offset(ctx, at)
            assert tensor.size_bytes == ggml.gguf_get_tensor_size(ctx, at)
            assert TENSOR_TYPES[ggml.gguf_get_tensor_type(ctx, at)] == tensor.type
    finally:
        ggml.gguf_free(ctx)


def test_metadata_of_a_real_model_matches_the_gguf_package() -> None:
    import gguf

    header = read_header(smollm2_path())
    oracle = gguf.GGUFReader(smollm2_path())
    for key, value in header.metadata.items():
        expected = oracle.fields[key].contents()
        assert (list(value) if isinstance(value, LazyArray) else value) == expected, key


@pytest.mark.parametrize("code", TENSOR_TYPES)
def test_tensor_types_match_the_engine_library(ggml: ctypes.CDLL, code: int) -> None:
    ours = TENSOR_TYPES[code]
    theirs = (
        ggml.ggml_type_name(code).decode().upper(),
        ggml.ggml_blck_size(code),
        ggml.ggml_type_size(code),
    )
    assert (ours.name, ours.block, ours.block_bytes) == theirs


@pytest.mark.parametrize("name", [*NOT_GGUF, *BROKEN])
def test_bad_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes((NOT_GGUF | BROKEN)[name])
    with pytest.raises(NotAModel) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "is empty"),
        ("html", "web page"),
        ("html_late", "web page"),
        ("json_error", "JSON"),
        ("lfs_pointer", "Git LFS pointer"),
        ("old_ggjt", "old ggjt format"),
        ("old_ggla", "ggla"),
        ("safetensors", "safetensors"),
        ("version_1", "version 1"),
        ("version_99", "version 99"),
        ("big_endian", "big endian"),
        ("magic_only", "incomplete: it has 4 bytes"),
        ("tensor_type_200", "token_embd.weight has type 200"),
    ],
)
def test_a_bad_file_is_named_for_what_it_is(name: str, says: str) -> None:
    data = (NOT_GGUF | BROKEN)[name]
    with pytest.raises(NotAModel) as caught:
        parse_header(data, name="x", file_bytes=len(data))
    assert says in caught.value.message


def test_terminal_escapes_in_names_are_not_repeated() -> None:
    data = gw.file_head(0, 2) + gw.key_value("a\x1b]0;owned\x07", "x") * 2
    with pytest.raises(NotAModel) as caught:
        parse_header(data, name="x\x1b[31m\u202e.gguf", file_bytes=len(data))
    assert caught.value.message.isprintable()


def test_every_cut_of_a_header_asks_for_more_and_never_for_what_it_has() -> None:
    whole = header_bytes(EVERY_TYPE, [Tensor("t", (32, 2), None)])
    parsed_end = len(whole) - 31
    for cut in range(parsed_end):
        with pytest.raises(NeedMoreBytes) as more:
            parse_header(whole[:cut])
        assert cut < more.value.needed_bytes <= len(whole)
        with pytest.raises(NotAModel) as short:
            parse_header(whole[:cut], name="f", file_bytes=cut)
        assert cut == 0 or f"it has {cut:,} bytes" in short.value.message
    assert [t.name for t in parse_header(whole).tensors] == ["t"]


def test_a_growing_prefix_ends_in_the_header_of_the_whole_file() -> None:
    path = smollm2_path()
    want = 64
    with path.open("rb") as file:
        for _ in range(64):
            file.seek(0)
            try:
                header = parse_header(file.read(want))
                break
            except NeedMoreBytes as more:
                want = max(2 * want, more.needed_bytes)
    whole = read_header(path)
    assert (header.tensors, header.data_offset, header.file_bytes) == (whole.tensors, whole.data_offset, None)
    assert want < 2 * whole.data_offset


@pytest.mark.parametrize("model", [smollm2_path, gemma_path])
def test_what_is_likely_needed_leads_to_the_end_in_a_few_steps(model: Callable[[], Path]) -> None:
    whole = read_header(model())
    data = model().read_bytes()[: 2 * whole.data_offset]
    want, steps = 128 << 10, 1
    while want < whole.data_offset:
        with pytest.raises(NeedMoreBytes) as caught:
            parse_header(data[:want])
        more = caught.value
        assert want < more.needed_bytes <= min(more.likely_bytes, whole.data_offset)
        want, steps = more.likely_bytes * 21 // 20, steps + 1
    assert parse_header(data[:want]).data_offset == whole.data_offset
    assert steps <= 8
    assert want <= 1.1 * whole.data_offset


def test_a_peek_tells_what_the_first_bytes_hold() -> None:
    header = read_header(smollm2_path())
    with smollm2_path().open("rb") as file:
        found = peek(file.read(64 << 10))
    assert found["general.architecture"] == "llama"
    assert 5 < len(found) < len(header.metadata)
    assert all(
        header.metadata[key] == value for key, value in found.items() if not isinstance(value, LazyArray)
    )


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_peek_never_raises(noise: bytes, cut: int) -> None:
    peek(noise)
    peek(header_bytes(EVERY_TYPE, [])[:cut] + noise)


def test_cut_real_files(tmp_path: Path) -> None:
    in_header, in_data = cut_files(smollm2_path(), tmp_path)
    with pytest.raises(NotAModel, match="incomplete: it has 1,000,000 bytes"):
        read_header(in_header)
    header = read_header(in_data)
    assert header.file_bytes is not None
    assert header.file_bytes < header.needed_bytes


def test_a_header_longer_than_the_limit_is_refused_not_read() -> None:
    text = gw.string("k") + struct.pack("<IQ", ValueType.STRING, MAX_HEADER_BYTES)
    with pytest.raises(NotAModel, match="limit"):
        parse_header(gw.file_head(0, 1) + text)


def test_folder_pipe_and_missing_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    with pytest.raises(NotAModel, match="folder"):
        read_header(folder)
    with pytest.raises(ModelNotFound, match="no file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFound):
        read_header(tmp_path / ("x" * 5000))
    with pytest.raises(ModelNotFound):
        read_header(Path("nul\0byte.gguf"))
    with pytest.raises(NotAModel, match="character device"):
        read_header(Path(os.devnull))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_named_and_not_waited_on(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(NotAModel, match="named pipe"):
        read_header(pipe)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"GGUF")

    def denied(*args: object, **kwargs: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("llmrun.gguf.reader.os.open", denied)
    with pytest.raises(ModelNotFound, match="permission denied"):
        read_header(path)
