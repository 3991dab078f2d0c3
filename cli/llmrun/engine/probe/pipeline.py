"""Compute buffers of several GPUs, or of tensors or K/V that lie apart, corrected after a dry run.

A dry run measures its graph with `ggml_backend_sched_reserve_size`, which forgets what was assigned to a
device by hand: the first norm of a GPU's layers, and attention without flash attention to the CPU where K/V
stay there. What is passed from device to device is then counted wrongly: too high, in as many copies as a
pipeline has (4), or by a little either way where tensors are placed by name; such attention is counted on the
GPU. So the same graph is reserved for real here, for a moment, where the devices have room for it.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from llmrun.engine.bindings import native_function
from llmrun.errors import EngineFailure

_PIPELINED = re.compile(r"sched copies = (\d+)")
_WORST_CASE = re.compile(r"worst-case: n_tokens = (\d+), n_seqs = (\d+), n_outputs = (\d+)")
_RESERVE = "_Z19llama_graph_reserveP13llama_contextjjj"
_SCHEDULER = "_ZNK13llama_context9get_schedEv"


def reserved_compute(
    context: Any, log: Iterable[str], devices: Mapping[str, str], *, scattered: bool
) -> Counter[str] | None:
    """Compute bytes for each device, None where nothing is to correct, or no room, or no such function.

    Args:
        context: an open context of a model opened dry.
        log: what the library wrote while it created the context.
        devices: device of each buffer type.
        scattered: several GPUs hold layers, tensors were placed by name, or K/V stay on the CPU.
    """
    copies = worst = None
    for line in log:
        copies = _PIPELINED.search(line) or copies
        worst = _WORST_CASE.search(line) or worst
    pipelined = copies is not None and int(copies[1]) > 1
    if worst is None or not (pipelined or scattered):
        return None
    try:
        reserve = native_function(_RESERVE, ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_uint32,) * 3)
        scheduler_of = native_function(_SCHEDULER, ctypes.c_void_p, ctypes.c_void_p)
    except EngineFailure:
        return None
    if not reserve(context, *map(int, worst.groups())):
        return None
    return _buffers(scheduler_of(context), devices)


def _buffers(scheduler: int, devices: Mapping[str, str]) -> Counter[str]:
    pointer = ctypes.c_void_p
    count = native_function("ggml_backend_sched_get_n_backends", ctypes.c_int, pointer)
    backend = native_function("ggml_backend_sched_get_backend", pointer, pointer, ctypes.c_int)
    type_of = native_function("ggml_backend_sched_get_buffer_type", pointer, pointer, pointer)
    size_of = native_function("ggml_backend_sched_get_buffer_size", ctypes.c_size_t, pointer, pointer)
    name_of = native_function("ggml_backend_buft_name", ctypes.c_char_p, pointer)
    found: Counter[str] = Counter()
    for index in range(count(scheduler)):
        each = backend(scheduler, index)
        name = name_of(type_of(scheduler, each)).decode()
        found[devices.get(name, name)] += size_of(scheduler, each)
    return found
