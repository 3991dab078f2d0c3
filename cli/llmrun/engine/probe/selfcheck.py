"""The child's side of the engine's self-check: what the library is, and whether it can generate."""

from __future__ import annotations

import math
import tempfile
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmrun.engine.api import ContextParams, GpuLayers, ModelParams
from llmrun.engine.bindings import backends, devices, library, library_path, library_version
from llmrun.engine.context import Context
from llmrun.engine.model import Model
from llmrun.engine.probe.tiny_model import write_q4_0_model
from llmrun.errors import EngineFailure

_PROMPT, _GENERATED = 8, 4  # a batch of several tokens, as kernels for matrices need, then single ones


def describe_build() -> dict[str, Any]:
    """Fields of `EngineBuild`."""
    from importlib.metadata import PackageNotFoundError, version

    lib = library()
    try:
        bindings = version("llama-cpp-python")
    except PackageNotFoundError:
        bindings = ""
    return {
        "version": library_version(),
        "bindings": bindings,
        "path": library_path(),
        "system_info": lib.llama_print_system_info().decode("utf-8", "replace"),
        "backends": [name for name, _ in backends()],
        "devices": [asdict(device) for device in devices()],
        "offloads": bool(lib.llama_supports_gpu_offload()),
    }


def generate(extra_bufts: bool, gpu_layers: GpuLayers, n_threads: int) -> int:
    """Tokens that the tiny model generated. Raises `EngineFailure` where its logits are no numbers."""
    with tempfile.TemporaryDirectory(prefix="llmrun-probe-") as folder:
        path = Path(folder) / "probe.gguf"
        write_q4_0_model(path)
        params = ContextParams(
            n_ctx=256, n_batch=_PROMPT, n_ubatch=_PROMPT, n_threads=n_threads, n_threads_batch=n_threads
        )
        loaded = Model(
            ModelParams(str(path), gpu_layers=gpu_layers),
            extra_bufts=extra_bufts,
            progress=lambda _: None,
            cancelled=threading.Event(),
        )
        with closing(loaded) as model, closing(Context(model, params)) as context:
            return _decode(context, model.vocab.n_tokens)


def _decode(context: Context, n_vocab: int) -> int:
    result = context.prefill(0, range(_PROMPT))
    for made in range(_GENERATED):
        if result != "ok":
            raise EngineFailure(f"the self-check ended early: {result} after {made} tokens")
        logits = library().llama_get_logits_ith(context.handle, -1)[:n_vocab]
        if not all(map(math.isfinite, logits)):
            raise EngineFailure("the engine computes logits that are not numbers", "rebuild the engine")
        result = context.decode([(0, max(range(n_vocab), key=logits.__getitem__))])
    return _GENERATED
