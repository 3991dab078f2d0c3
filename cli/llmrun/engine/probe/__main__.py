"""Entry of the probe child: `python -m llmrun.engine.probe compute`.

`compute` writes a tiny model with Q4_0 weights, decodes a batch of eight tokens with plain weights and
prints "plain", then does the same with repacked weights and prints "extra". Who dies in between has told
what is broken: AMX kernels are only used for batches of several tokens on quantized matrices.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.context import Context
from llmrun.engine.model import Model
from llmrun.engine.probe.tiny_model import write_q4_0_model

_BATCH = 8


def probe_compute() -> None:
    """Print each stage that survives."""
    with tempfile.TemporaryDirectory(prefix="llmrun-probe-") as folder:
        path = Path(folder) / "probe.gguf"
        write_q4_0_model(path)
        for stage, extra_bufts in (("plain", False), ("extra", True)):
            _decode_batch(path, extra_bufts)
            print(stage, flush=True)


def _decode_batch(path: Path, extra_bufts: bool) -> None:
    model = Model(
        ModelParams(str(path), gpu_layers=0),
        extra_bufts=extra_bufts,
        progress=lambda _: None,
        cancelled=threading.Event(),
    )
    context = Context(model, ContextParams(n_ctx=256, n_batch=_BATCH, n_ubatch=_BATCH))
    result = context.prefill(0, range(_BATCH))
    if result != "ok":
        raise SystemExit(f"the batch was {result}")
    context.close()
    model.close()


if __name__ == "__main__":
    if sys.argv[1:] != ["compute"]:
        raise SystemExit("usage: python -m llmrun.engine.probe compute")
    probe_compute()
