"""Header-only copies: the same header and length, no data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.errors import ModelNotFound, NotAModel, WriteFailure
from llmrun.gguf.reader import parse_header, read_header
from llmrun.gguf.sparse import sparse_copy, write_sparse

from tests.support.gguf_writer import Tensor, write_gguf
from tests.support.tiny import write_tiny


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def test_the_header_is_the_same(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama")
    (copy,) = sparse_copy([path], folder(tmp_path, "to"))
    want, got = read_header(path), read_header(copy)
    assert copy.name == path.name
    assert (got.tensors, got.data_offset, got.file_bytes) == (want.tensors, want.data_offset, want.file_bytes)
    assert {k: str(v) for k, v in got.metadata.items()} == {k: str(v) for k, v in want.metadata.items()}
    head = want.data_offset
    assert copy.read_bytes()[:head] == path.read_bytes()[:head]
    assert not any(copy.read_bytes()[head:])


def test_a_large_model_takes_no_space(tmp_path: Path) -> None:
    """A hole of 64 GiB: neither read nor written."""
    path = write_gguf(
        tmp_path / "m.gguf", [("general.architecture", "llama")], [Tensor("t.weight", (1 << 12, 1 << 22))]
    )
    (copy,) = sparse_copy([path], folder(tmp_path, "to"))
    assert copy.stat().st_size == path.stat().st_size > 64 << 30
    if hasattr(os.stat_result, "st_blocks"):
        assert copy.stat().st_blocks * 512 < 1 << 20


def test_every_part(tmp_path: Path) -> None:
    parts = [
        write_gguf(
            tmp_path / f"m-{no:05d}-of-00003.gguf",
            [("general.architecture", "llama"), ("split.no", no - 1), ("split.count", 3)],
            [Tensor(f"t{no}", (32 * no,))],
        )
        for no in (1, 2, 3)
    ]
    copies = sparse_copy(parts, folder(tmp_path, "to"))
    assert [copy.name for copy in copies] == [part.name for part in parts]
    assert [read_header(copy).tensors[0].name for copy in copies] == ["t1", "t2", "t3"]


def test_from_a_prefix_of_a_remote_file(tmp_path: Path) -> None:
    """The length of the file need not be known: that of the tensors counts."""
    path = write_tiny(tmp_path / "m.gguf", "gemma3")
    head = path.read_bytes()[:100_000]
    header = parse_header(head)
    assert header.file_bytes is None
    copy = write_sparse(tmp_path / "copy.gguf", head, header)
    assert copy.stat().st_size == header.needed_bytes
    longer = write_sparse(tmp_path / "longer.gguf", head, replace(header, file_bytes=header.needed_bytes + 7))
    assert longer.stat().st_size == header.needed_bytes + 7


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    to = folder(tmp_path, "to")
    with pytest.raises(NotAModel):
        sparse_copy([tmp_path / "text"], to)
    with pytest.raises(ModelNotFound):
        sparse_copy([tmp_path / "nothing"], to)
    assert list(to.iterdir()) == []


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama")
    with pytest.raises(WriteFailure):
        sparse_copy([path], tmp_path / "missing")
