"""A sequence's memory as bytes: the library's own format, opaque to the rest of the program.

The flag PARTIAL_ONLY leaves out what never forgets: of a sliding-window cache the layers that keep every
position, of a hybrid model the attention layers. The library checks layer count, types and row sizes when it
reads a state, and that it does not run past its end; it checks neither weights nor a sum, so that what came
from a file has to be checked before.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llmrun.engine.bindings import library
from llmrun.errors import EngineFailure


def read_state(context: Any, seq: int, *, partial: bool) -> bytearray:
    """Copy out the memory of `seq`.

    Raises:
        EngineFailure: the library writes less than it announced.
    """
    lib, flags = library(), _flags(partial)
    size = lib.llama_state_seq_get_size_ext(context, seq, flags)
    data = bytearray(size)
    written = lib.llama_state_seq_get_data_ext(context, _pointer(data), size, seq, flags)
    if not 0 < written == size:
        raise EngineFailure(f"the engine saved {written:,} of {size:,} bytes of a sequence's state")
    return data


def write_state(context: Any, seq: int, data: bytearray | memoryview, *, partial: bool) -> bool:
    """Put a copy into `seq`; False if the library refuses it, after which the sequence is undefined."""
    if not data:
        return False
    return bool(
        library().llama_state_seq_set_data_ext(context, _pointer(data), len(data), seq, _flags(partial))
    )


def _pointer(data: bytearray | memoryview) -> Any:
    whole = (ctypes.c_uint8 * len(data)).from_buffer(data)
    return ctypes.cast(whole, ctypes.POINTER(ctypes.c_uint8))


def _flags(partial: bool) -> int:
    lib = library()
    return int(lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else lib.LLAMA_STATE_SEQ_FLAGS_NONE)
