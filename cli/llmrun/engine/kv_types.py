"""K/V cache types by the names llama.cpp's tools use, as ggml type numbers (ggml.h, enum ggml_type)."""

from __future__ import annotations

from llmrun.errors import UsageError

GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}


def ggml_type(name: str) -> int:
    """Type number of a cache type.

    Raises:
        UsageError: no such cache type.
    """
    try:
        return GGML_TYPES[name]
    except KeyError:
        hint = f"choose one of {', '.join(GGML_TYPES)}"
        raise UsageError(f"unknown K/V cache type {name!r}", hint) from None
