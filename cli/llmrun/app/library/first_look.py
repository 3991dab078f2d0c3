"""What a model file is, from its first bytes alone: quick enough for every model on a machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from llmrun.gguf.check import other_kind
from llmrun.gguf.reader import peek

_PEEK_BYTES = 64 << 10


def first_look(path: Path) -> tuple[str, str]:
    """Kind (empty: it may generate text) and architecture; does not count as a use of the file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        try:
            descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
        except PermissionError:  # the file is somebody else's
            descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(_PEEK_BYTES) if regular else b""
    except OSError:
        return "unreadable", ""
    metadata = peek(data)
    if not metadata:
        return "no GGUF file", ""
    arch = metadata.get("general.architecture")
    return other_kind(metadata) or "", arch if isinstance(arch, str) else ""
