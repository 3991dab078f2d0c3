"""Stops a decode from another thread without Python code in the compute loop.

The library asks its abort callback before every graph node (some 500 times a token). libc's `strlen` on a
two-byte buffer serves as that callback: it returns 0 until the first byte is set. Only the CPU's backend
asks; on a GPU what was begun is finished first (llama_context_params in llama.h).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any


class AbortFlag:
    """Set from any thread; valid as long as a context uses it."""

    def __init__(self, callback_type: Any) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self.callback = ctypes.cast(libc.strlen, callback_type)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        """Abort the running decode and refuse later ones."""
        self._buffer[0] = b"\x01"

    def clear(self) -> None:
        """Let decodes run again."""
        self._buffer[0] = b"\x00"

    def is_set(self) -> bool:
        """Whether decodes are refused."""
        return self._buffer[0] != b"\x00"
