"""Where weights go: shares of the GPUs, the experts on the CPU, single tensors by name.

The library takes a list of (regular expression, buffer type) that it tries in order on every tensor name
(llama-model-loader.cpp). Keeping experts on the CPU is such a list, with the patterns of llama.cpp's own
tools (memory/patterns.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from llmrun.engine.api import ModelParams
from llmrun.engine.bindings import Device, device_handles, devices, library, native_function
from llmrun.errors import UsageError
from llmrun.gguf.layers import MAX_LAYERS
from llmrun.memory.patterns import expert_rules, tensor_pattern
from llmrun.memory.placement import check_gpus, gpus_of


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class Placement:
    """Fills the offload fields of native model parameters and keeps the arrays they point to."""

    def __init__(self, native: Any, params: ModelParams, n_gpus: int) -> None:
        """Set the fields. `n_gpus`: how many GPUs there are for layers.

        Raises:
            UsageError: a device, share, pattern or buffer type that cannot be.
        """
        if params.devices is not None:
            handles = dict(zip((device.name for device in devices()), device_handles(), strict=True))
            used = [_handle(handles, name) for name in params.devices]
            self._devices = (ctypes.c_void_p * (len(used) + 1))(*used)  # a null ends the list
            native.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        check_gpus(n_gpus, params.main_gpu, params.tensor_split)
        if params.main_gpu is not None:
            native.split_mode, native.main_gpu = library().LLAMA_SPLIT_MODE_NONE, params.main_gpu
        if params.tensor_split:
            shares = params.tensor_split
            self._shares = (ctypes.c_float * max(library().llama_max_devices(), len(shares)))(*shares)
            native.tensor_split = ctypes.cast(self._shares, ctypes.POINTER(ctypes.c_float))
        experts = expert_rules(cpu_moe=params.cpu_moe, n_cpu_moe=params.n_cpu_moe, n_layer=MAX_LAYERS)
        rules = [*params.override_tensor, *experts]  # the user's own are tried first
        if rules:
            types = buffer_types()
            entries = [
                _Override(tensor_pattern(pattern).pattern.encode(), _buffer_type(types, name))
                for pattern, name in rules
            ]
            self._overrides = (_Override * (len(entries) + 1))(*entries)  # an empty entry ends the list
            native.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)


def gpus_in_use(params: ModelParams) -> list[Device]:
    """The GPUs that layers can go to, in the engine's order."""
    found = devices()
    if params.devices is not None:
        return [device for name in params.devices for device in found if device.name == name]
    return list(gpus_of(seen_once(found)))


def seen_once(found: Iterable[Device]) -> list[Device]:
    """The devices without GPUs that another backend lists before: by their address, integrated ones always.

    So does the library choose among them (llama_prepare_model_devices in src/llama.cpp).
    """
    kept: list[Device] = []
    for device in found:
        alike = [other for other in kept if other.kind == device.kind]
        twin = device.address and any(other.address == device.address for other in alike)
        if device.kind == "igpu":
            twin = any(other.backend != device.backend for other in alike)
        if not twin:
            kept.append(device)
    return kept


def buffer_types() -> dict[str, int]:
    """Address of each device's buffer type by its name, such as "CPU", "CUDA0", "RPC0[host:port]", and by the
    device's."""
    of_device = native_function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    types = [(device, of_device(handle)) for device, handle in zip(devices(), device_handles(), strict=True)]
    return {name: buft for device, buft in types if buft for name in (device.name, device.buffer)}


def devices_of_buffers() -> dict[str, str]:
    """Name of the device that each buffer type belongs to; pinned host memory counts as the CPU's."""
    of_device = native_function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    host = native_function("ggml_backend_dev_host_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = native_function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    found: dict[str, str] = {}
    known = devices()  # asking a GPU takes milliseconds
    cpu = next((device.name for device in known if device.kind == "cpu"), "CPU")
    for device, handle in zip(known, device_handles(), strict=True):
        if pinned := host(handle):
            found[name(pinned).decode()] = cpu
        if own := of_device(handle):
            found[name(own).decode()] = device.name
    return found


def _handle(handles: dict[str, int], name: str) -> int:
    try:
        return handles[name]
    except KeyError:
        raise UsageError(f"the engine sees no device {name}", f"it sees {', '.join(handles)}") from None


def _buffer_type(types: dict[str, int], name: str) -> int:
    try:
        return types[name]
    except KeyError:
        hint = f"choose one of {', '.join(types)}"
        raise UsageError(f"there is no buffer type {name!r} for tensors", hint) from None
