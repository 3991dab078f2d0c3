"""What each layer of a model is: its heads, and whether it attends to a sliding window only.

A sliding-window layer sees the last `n_swa` positions (chunked: those of its own chunk), so its cache is
bounded. Which layers those are is a pattern array in the file, or a period: of every `period` layers the
last is full (the first where `dense_first`). Files rarely name the period; the table holds what the engine
assumes for each architecture (llama.cpp, src/models/*.cpp and set_swa_pattern in src/llama-hparams.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.gguf.header import GgufHeader

MAX_LAYERS = 512


@dataclass(frozen=True, slots=True)
class _Window:
    period: int
    n_swa: int = 0
    dense_first: bool = False
    fixed: bool = False
    chunked: bool = False
    only_n_layer: int = 0


_WINDOWS: dict[str, _Window] = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, dense_first=True),
    "deepseek4": _Window(0),
    "exaone-moe": _Window(4, n_swa=128),
    "exaone4": _Window(4, n_swa=4096, only_n_layer=64),
    "gemma2": _Window(2, n_swa=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gpt-oss": _Window(2),
    "laguna": _Window(4, dense_first=True),
    "llama4": _Window(4, n_swa=8192, fixed=True, chunked=True),
    "mellum": _Window(4),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, n_swa=4096, fixed=True, dense_first=True),
}


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The window in tokens (0: none), whether it is chunked, and which layers it holds for."""

    n_swa: int
    chunked: bool
    layers: tuple[bool, ...]


def per_layer(header: GgufHeader, key: str, n_layer: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """The values of `key` for each layer: an array as it stands, one number repeated, else `default`."""
    value = header.integer(key)
    if value is not None:
        return (value,) * n_layer
    array = header.array(key)
    if array is None or len(array) < n_layer:
        return default
    values = array[:n_layer]
    return (
        tuple(v for v in values if isinstance(v, int)) if all(isinstance(v, int) for v in values) else default
    )


def _pattern(header: GgufHeader, key: str, n_layer: int, window: _Window | None) -> tuple[bool, ...] | None:
    array = header.array(key)
    if array is not None:
        flags = array[:n_layer]
        return tuple(bool(f) for f in flags) + (False,) * (n_layer - len(flags))
    if window is None:
        return None
    period = header.integer(key)
    n = window.period if period is None else period
    if n <= 0:
        return (True,) * n_layer
    if window.dense_first:
        return tuple(il % n != 0 for il in range(n_layer))
    return tuple(il % n < n - 1 for il in range(n_layer))


def sliding_window(header: GgufHeader, n_layer: int) -> SlidingWindow:
    """The sliding window as the engine reads it; a window key that the engine ignores counts as none."""
    arch = header.arch
    window = _WINDOWS.get(arch)
    in_file = header.integer(f"{arch}.attention.sliding_window")
    none = SlidingWindow(0, False, (False,) * n_layer)
    if window is not None and window.only_n_layer not in (0, n_layer):
        return none
    # Where the window is fixed the file only says whether there is one; llama4 has one unless it says 0.
    if window is not None and window.fixed:
        missing = in_file is None and not window.chunked
        n_swa = 0 if in_file == 0 or missing else window.n_swa
    else:
        n_swa = in_file if in_file is not None else (window.n_swa if window is not None else 0)
    layers = _pattern(header, f"{arch}.attention.sliding_window_pattern", n_layer, window)
    if n_swa <= 0 or layers is None:
        return none
    return SlidingWindow(n_swa, window is not None and window.chunked, layers)
