"""What a measurement was taken with: the library's build, its backends and devices, the model as it calls it.

The texts are those llama-bench prints, so that figures can be laid beside each other.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llmrun.engine.api import Identity
from llmrun.engine.bindings import backends, devices, library, library_version

_DESCRIPTION_BYTES = 128


def identity_of(model: Any) -> Identity:
    """Of an open `llama_model`."""
    lib = library()
    text = ctypes.create_string_buffer(_DESCRIPTION_BYTES)
    lib.llama_model_desc(model, text, len(text))
    found = devices()
    return Identity(
        build=library_version(),
        backends=",".join(_used_backends()) or "CPU",
        cpu_info=", ".join(d.description for d in found if d.kind in ("cpu", "accel")),
        gpu_info=", ".join(d.description for d in found if d.kind in ("gpu", "igpu")),
        model_type=text.value.decode("utf-8", "replace"),
        model_bytes=lib.llama_model_size(model),
        n_params=lib.llama_model_n_params(model),
    )


def _used_backends() -> list[str]:
    """Names of the backends beside the CPU's; RPC once, where a server is used."""
    found: dict[str, None] = {}
    for name, n_devices in backends():
        if name.startswith("RPC"):
            if n_devices:
                found["RPC"] = None
        elif name != "CPU":
            found[name] = None
    return sorted(found, key="RPC".__eq__)
