"""Header-only copies of model files: the header's bytes, then a hole up to the full length.

The engine computes memory sizes from such a file as from the whole one; it refuses one that is cut short.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from llmrun.errors import WriteFailure
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.reader import read_header


def sparse_copy(paths: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Write header-only copies of `paths`, all parts of a model in order, into `folder` under their names.

    Raises:
        ModelNotFound, NotAModel: a file cannot be read or is none.
        WriteFailure: the copy cannot be written.
    """
    copies = []
    for path in paths:
        header = read_header(path)
        with path.open("rb") as file:
            head = file.read(header.data_offset)
        copies.append(write_sparse(folder / path.name, head, header))
    return tuple(copies)


def write_sparse(path: Path, head: bytes, header: GgufHeader) -> Path:
    """Write `head`, the bytes that `header` was read from, and extend the file to hold all its tensors.

    Raises:
        WriteFailure: the file cannot be written, or its length is beyond the file system's.
    """
    length = max(header.needed_bytes, header.file_bytes or 0)
    try:
        with path.open("wb") as file:
            file.write(head[: header.data_offset])
            os.ftruncate(file.fileno(), length)
    except OSError as error:
        raise WriteFailure(
            f"a header-only copy of {length:,} bytes cannot be written: {error.strerror}",
            "give TMPDIR a folder on a file system with sparse files",
        ) from None
    return path
