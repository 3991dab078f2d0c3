"""A model's weights in memory: load, describe, close."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from llmrun.engine.api import GpuLayers, ModelParams
from llmrun.engine.bindings import library, native_log
from llmrun.engine.cache_log import read_buffers
from llmrun.engine.offload import Placement, devices_of_buffers, gpus_in_use
from llmrun.engine.rpc import add_rpc_servers
from llmrun.engine.vocab import Vocab
from llmrun.errors import DoesNotFit, EngineFailure, Interrupted, LlmrunError, NotAModel

_ALL_LAYERS = 1 << 30
_OUT_OF_MEMORY = (
    "failed to allocate", "unable to allocate", "bad_alloc", f"mmap failed: {os.strerror(errno.ENOMEM)}",
)  # fmt: skip
_REPACKED = ("CPU_REPACK", "AMX")
"""Buffers of copies, as the library names them in the message that it has no memory for one."""

log = logging.getLogger("llmrun.engine")


class Model:
    """Owns one `llama_model`. Not thread-safe; `close` exactly when no context uses it any more."""

    def __init__(
        self,
        params: ModelParams,
        *,
        extra_bufts: bool,
        progress: Callable[[float], None],
        cancelled: threading.Event,
        dry: bool = False,
    ) -> None:
        """Load the weights.

        Args:
            extra_bufts: let the library repack weights for faster kernels (see `engine/amx.py`).
            progress: told the share of weights read, 0 to 1.
            cancelled: when set, loading stops with `Interrupted`.
            dry: read the header only; contexts of such a model compute sizes and allocate little.

        Raises:
            UsageError, NetworkFailure: devices or servers that `params` names do not exist.
            NotAModel: the library refuses the file; the message carries its last error line.
            DoesNotFit: a device has not the memory for its weights.
            Interrupted: loading was cancelled.
        """
        lib = library()
        add_rpc_servers(params.rpc)
        gpus = gpus_in_use(params)
        native = lib.llama_model_default_params()
        native.n_gpu_layers = wanted_layers(params.gpu_layers, has_gpu=bool(gpus))
        takers = gpus if params.main_gpu is None else gpus[params.main_gpu : params.main_gpu + 1]
        self.mapped = params.use_mmap and (not native.n_gpu_layers or all(gpu.maps for gpu in takers))
        mode = _load_mode(lib, mapped=self.mapped, locked=params.use_mlock)
        native.load_mode = lib.LLAMA_LOAD_MODE_NONE if dry else mode
        native.no_alloc, native.use_extra_bufts = dry, extra_bufts
        self._placement = Placement(native, params, len(gpus))  # its arrays must outlive the load

        def on_progress(fraction: float, _user_data: object) -> bool:
            progress(fraction)
            return not cancelled.is_set()

        callback = lib.llama_progress_callback(on_progress)
        native.progress_callback = callback
        native_log.clear()
        self.extra_bufts = extra_bufts
        self._lib = lib
        self.handle: Any = lib.llama_model_load_from_file(os.fsencode(params.path), native)
        if not self.handle:
            raise Interrupted("interrupted while loading") if cancelled.is_set() else _not_loaded(params.path)
        self.buffer_bytes = read_buffers(native_log.lines, "model", devices_of_buffers())
        self.vocab = Vocab(self.handle)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self.handle)
        self.n_swa: int = lib.llama_model_n_swa(self.handle)
        self.recurrent = bool(
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )
        self.chunked_window = self.meta("general.architecture") == "llama4"
        self.long_rope_beyond = self._long_rope_beyond()
        n_slots = 1 + lib.llama_model_n_layer(self.handle) + lib.llama_model_n_layer_nextn(self.handle)
        self.gpu_layers = min(native.n_gpu_layers, n_slots) if gpus else 0  # the output counts as one

    def meta(self, key: str) -> str:
        """A metadata value as text, empty when the file lacks the key."""
        buffer = ctypes.create_string_buffer(256)
        count = self._lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if count >= 0 else ""

    def _long_rope_beyond(self) -> int | None:
        """The largest context that takes a LongRoPE model's short factors; None for other models.

        `llama_model::get_rope_factors` in llama-model.cpp: a larger context takes the long ones for all
        positions, so that its keys are others from the first token on.
        """
        scaling = f"{self.meta('general.architecture')}.rope.scaling"
        if self.meta(f"{scaling}.type") != "longrope":
            return None
        told = self.meta(f"{scaling}.original_context_length")
        return int(told) if told.isdecimal() else self.n_ctx_train

    def check_generates(self) -> None:
        """Raise `NotAModel` when the model has no decoder to generate text with."""
        lib = self._lib
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            raise NotAModel(
                f"not a text-generation model ({self.meta('general.architecture')})",
                "choose a model with a decoder only",
            )

    def close(self) -> None:
        """Free the weights; closing twice does nothing."""
        if self.handle:
            self._lib.llama_model_free(self.handle)
            self.handle = None


def load_model(
    params: ModelParams,
    *,
    extra_bufts: bool,
    progress: Callable[[float], None],
    cancelled: threading.Event,
    dry: bool = False,
) -> Model:
    """A model, its weights repacked if `extra_bufts` allows it and there is memory for the copy.

    The copy makes a prefill faster; a model runs without it, too. Errors as those of `Model`.
    """
    try:
        return Model(params, extra_bufts=extra_bufts, progress=progress, cancelled=cancelled, dry=dry)
    except DoesNotFit as failure:
        if not extra_bufts or not any(buffer in failure.message for buffer in _REPACKED):
            raise
        log.info("weights are not repacked: %s", failure.message)
    return Model(params, extra_bufts=False, progress=progress, cancelled=cancelled, dry=dry)


def wanted_layers(gpu_layers: GpuLayers, has_gpu: bool) -> int:
    """Layers to ask the engine for: `auto` is all where there is a GPU, else none."""
    if gpu_layers == "auto":
        return _ALL_LAYERS if has_gpu else 0
    return _ALL_LAYERS if gpu_layers == "all" else gpu_layers


def _load_mode(lib: Any, *, mapped: bool, locked: bool) -> int:
    modes = {
        (False, False): lib.LLAMA_LOAD_MODE_NONE,
        (True, False): lib.LLAMA_LOAD_MODE_MMAP,
        (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
        (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return int(modes[mapped, locked])


def _not_loaded(path: str) -> LlmrunError:
    name = os.path.basename(path)
    if out_of_memory():
        return DoesNotFit(
            f"{name} does not fit in memory: {_cause()}",
            "use a smaller quantization, or fewer layers on the GPU (-ngl)",
        )
    return NotAModel(f"{name}: the engine cannot load it: {_cause()}", "-v shows the engine's own log")


def _cause() -> str:
    """The most telling line of the library's log after a failed load."""
    errors = [line for line in native_log.lines if "error" in line and "failed to load model" not in line]
    line = errors[0] if errors else native_log.last_error
    return line.split("error loading model: ")[-1].strip() or "no reason given"


def out_of_memory() -> bool:
    """Whether the library's log since the last call tells of an allocation that failed."""
    return any(sign in line for line in native_log.lines for sign in _OUT_OF_MEMORY)


def engine_error(action: str, fallback: str = "") -> EngineFailure:
    """`EngineFailure` that quotes the library's last error line."""
    return EngineFailure(f"{action}: {native_log.last_error or fallback or 'no reason given'}")
