"""A GPU that borrows: the engine's RPC server as a device that takes over work on the CPU's weights.

    python -m tests.support.borrowing '{"path", "server", "model", "context"}'

Servers leave such work to the CPU; CUDA and others take it from 32 tokens on. Here the server's device is
told to say yes as they do (ggml_backend_cuda_device_offload_op in ggml/src/ggml-cuda/ggml-cuda.cu), by the
pointer in its table of functions (ggml_backend_device_i in ggml/src/ggml-backend-impl.h), in a process of
its own. Prints the compute buffers of a dry run by device.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import device_handles, devices, native_function
from llmrun.engine.probe import account as accounting
from llmrun.engine.rpc import add_rpc_servers

_OFFLOAD_OP = 11  # its place in the table
_BATCH = 32
_NE, _OP = 16, 80  # offsets in ggml_tensor
_Answer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)


def borrowing_compute(
    path: Path, server: str, model: dict[str, Any], context: dict[str, Any]
) -> dict[str, int]:
    """Compute bytes of each device, by a child process."""
    question = json.dumps({"path": str(path), "server": server, "model": model, "context": context})
    command = [sys.executable, "-m", "tests.support.borrowing", question]
    folder = Path(__file__).resolve().parents[2]
    ended = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(ended.stdout)
    return found


def _takes_over(_device: int, tensor: int) -> bool:
    name_of = native_function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)
    op = name_of(ctypes.c_int.from_address(tensor + _OP).value).decode()
    rows = (ctypes.c_int64 * 4).from_address(tensor + _NE)
    if op == "GET_ROWS":
        return False
    batch = {"MUL_MAT": rows[1], "MUL_MAT_ID": rows[2], "ROPE": rows[2]}.get(op, rows[1] * rows[2] * rows[3])
    return bool(batch >= _BATCH)


def main() -> None:
    """Answer the question on the command line."""
    question = json.loads(sys.argv[1])
    add_rpc_servers((question["server"],))
    answer = _Answer(_takes_over)
    for handle, device in zip(device_handles(), devices(), strict=True):
        if device.name.startswith("RPC"):
            entry = handle + _OFFLOAD_OP * ctypes.sizeof(ctypes.c_void_p)
            ctypes.c_void_p.from_address(entry).value = ctypes.cast(answer, ctypes.c_void_p).value
    path = Path(question["path"])
    model = ModelParams(str(path), rpc=(question["server"],), **question["model"])
    with patch.object(accounting, "extra_bufts_are_safe", lambda _: False):  # repacked weights are not lent
        sizes = accounting.account([path], model, ContextParams(**question["context"]), dry=True)
    print(json.dumps({device.name: device.compute_bytes for device in sizes.devices}))


if __name__ == "__main__":
    main()
