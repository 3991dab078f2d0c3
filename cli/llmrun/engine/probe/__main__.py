"""Entries of the probe child: `python -m llmrun.engine.probe ENTRY`.

Most entries answer a question as `probe/child.py` describes. `compute` writes a tiny model with Q4_0
weights, decodes a batch of eight tokens with plain weights and prints "plain", then does the same with
repacked weights and prints "extra". Who dies in between has told what is broken: AMX kernels are only used
for batches of several tokens on quantized matrices.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmrun.engine.api import ContextParams, ModelParams, RopeParams
from llmrun.engine.bindings import devices
from llmrun.engine.context import Context
from llmrun.engine.flash import AttentionShape, flash_attention_types
from llmrun.engine.model import Model
from llmrun.engine.probe.account import account
from llmrun.engine.probe.scan import scan_passes
from llmrun.engine.probe.selfcheck import describe_build, generate
from llmrun.engine.probe.tiny_model import write_q4_0_model
from llmrun.engine.rpc import add_rpc_servers
from llmrun.errors import LlmrunError

_BATCH = 8
_WATCH_S = 0.2
_QUESTIONS = ("devices", "flash", "sizes", "measure", "bandwidth", "build", "generate")


def probe_compute() -> None:
    """Print each stage that survives."""
    with tempfile.TemporaryDirectory(prefix="llmrun-probe-") as folder:
        path = Path(folder) / "probe.gguf"
        write_q4_0_model(path)
        for stage, extra_bufts in (("plain", False), ("extra", True)):
            _decode_batch(path, extra_bufts)
            print(stage, flush=True)


def _decode_batch(path: Path, extra_bufts: bool) -> None:
    loaded = Model(
        ModelParams(str(path), gpu_layers=0),
        extra_bufts=extra_bufts,
        progress=lambda _: None,
        cancelled=threading.Event(),
    )
    params = ContextParams(n_ctx=256, n_batch=_BATCH, n_ubatch=_BATCH)
    with closing(loaded) as model, closing(Context(model, params)) as context:
        result = context.prefill(0, range(_BATCH))
    if result != "ok":
        raise SystemExit(f"the batch was {result}")


def answer(entry: str) -> None:
    """Read the question on stdin, print the answer."""
    document = json.load(sys.stdin)
    _bound(**document["bounds"])
    question = document["question"]
    try:
        found = {"ok": _ask(entry, question)}
    except LlmrunError as error:
        found = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    print(json.dumps(found), flush=True)


def _ask(entry: str, question: dict[str, Any]) -> object:
    match entry:
        case "devices":
            return _devices(question)
        case "flash":
            return _flash(question)
        case "bandwidth":
            return scan_passes(**question)
        case "build":
            return describe_build()
        case "generate":
            return generate(**question)
    return _sizes(question, dry=entry == "sizes")


def _bound(alarm_s: int, memory_bytes: int | None, parent: int) -> None:
    """End this process past its time or with its parent, and refuse it memory past its share."""
    if sys.platform == "win32":
        return
    import resource

    signal.alarm(alarm_s)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _end_with(parent: int) -> None:
    """A load goes on for minutes, which nobody waits for once the parent was killed."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)


def _devices(question: dict[str, Any]) -> list[dict[str, Any]]:
    add_rpc_servers(question["rpc"])
    return [asdict(device) for device in devices()]


def _flash(question: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    add_rpc_servers(question["rpc"])
    shapes = [AttentionShape(**shape) for shape in question["shapes"]]
    return flash_attention_types(question["devices"], shapes, [(k, v) for k, v in question["pairs"]])


def _sizes(question: dict[str, Any], *, dry: bool) -> dict[str, Any]:
    model, context = question["model"], question["context"]
    for name in ("tensor_split", "rpc", "devices"):
        model[name] = None if model[name] is None else tuple(model[name])
    model["override_tensor"] = tuple((pattern, name) for pattern, name in model["override_tensor"])
    context["rope"] = RopeParams(**context["rope"])
    paths = [Path(path) for path in question["paths"]]
    bounds = {"state_bytes": question["state_bytes"]} if dry else {}
    return asdict(account(paths, ModelParams(**model), ContextParams(**context), dry=dry, **bounds))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["compute"]:
            probe_compute()
        case [name] if name in _QUESTIONS:
            answer(name)
        case _:
            raise SystemExit(f"usage: python -m llmrun.engine.probe compute|{'|'.join(_QUESTIONS)}")
