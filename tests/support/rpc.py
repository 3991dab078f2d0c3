"""The engine's own RPC server in a child process: a device with memory of its own, in place of a GPU."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_START_TIMEOUT_S = 30
_SERVE = """
import ctypes, sys
from llmrun.engine.bindings import native_function
by_name = native_function("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
devices = (ctypes.c_void_p * 1)(by_name(b"CPU"))
serve = native_function(
    "ggml_backend_rpc_start_server", None,
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p,
)
serve(sys.argv[1].encode(), None, 1, 1, devices)
"""


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def rpc_server(*, most_kib: int | None = None) -> Iterator[str]:
    """Run a server with one thread; gives its "host:port". It serves one client at a time.

    `most_kib`: what it can allocate, whatever it says is free.
    """
    port = free_port()
    server = f"127.0.0.1:{port}"
    limit = "unlimited" if most_kib is None else most_kib
    child = subprocess.Popen(
        ["sh", "-c", f'ulimit -d {limit}; exec "$@"', "sh", sys.executable, "-P", "-c", _SERVE, server],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(child, port)
        yield server
    finally:
        child.kill()
        child.wait()


def _wait(child: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end:
        assert child.poll() is None, "the RPC server ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError("the RPC server does not listen")
