"""The library's own account of its memory, exact to the byte, where it can be read.

`llama_get_memory_breakdown` returns a C++ `std::map` from buffer type to three sizes and is exported under
its C++ name only. On Linux with GCC's standard library the map is a red-black tree whose nodes hold colour,
parent, left, right, then key and value (bits/stl_tree.h). Elsewhere there is no account, and the log's
rounded figures have to do.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llmrun.engine.bindings import native_function
from llmrun.errors import EngineFailure

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_MAX_ENTRIES = 1024


class _Node(ctypes.Structure):
    _fields_ = (
        ("colour", ctypes.c_long),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("buft", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


class _Map(ctypes.Structure):
    _fields_ = (
        ("compare", ctypes.c_void_p),
        ("colour", ctypes.c_long),
        ("root", ctypes.c_void_p),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Bytes for each device: weights, caches (K/V and recurrent state), compute; and weights repacked for
    the CPU's kernels, which live beside the plain ones."""

    model: Counter[str] = field(default_factory=Counter)
    context: Counter[str] = field(default_factory=Counter)
    compute: Counter[str] = field(default_factory=Counter)
    repack: Counter[str] = field(default_factory=Counter)


def read_breakdown(context: Any, cpu: str) -> Breakdown | None:
    """The account of an open context, None where it cannot be read. Host memory goes by the name `cpu`."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = native_function(_SYMBOL, _Map, ctypes.c_void_p)
    except EngineFailure:
        return None
    tree = function(context)
    if not 0 < tree.count <= _MAX_ENTRIES:
        return None
    is_host = native_function("ggml_backend_buft_is_host", ctypes.c_bool, ctypes.c_void_p)
    device_of = native_function("ggml_backend_buft_get_device", ctypes.c_void_p, ctypes.c_void_p)
    name_of = native_function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    found = Breakdown()
    for node in _nodes(tree.root):
        owner = device_of(node.buft)
        host = is_host(node.buft)
        device = cpu if host or not owner else name_of(owner).decode()
        weights = found.model if host or device != cpu else found.repack
        weights[device] += node.model
        found.context[device] += node.context
        found.compute[device] += node.compute
    return found


def _nodes(address: int | None) -> Iterator[_Node]:
    if address:
        node = _Node.from_address(address)
        yield from _nodes(node.left)
        yield node
        yield from _nodes(node.right)
