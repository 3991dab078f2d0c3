"""The engine's own RPC server in a child process: a device with memory of its own, in place of a GPU."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import TIMEOUT_S, wait_until

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


@contextmanager
def free_port() -> Iterator[int]:
    """A TCP port of the loopback interface that nobody but us can listen on: not before we say so.

    It stays taken by a socket that does not listen, so that it is given to no other program; one that asks
    for this very port with SO_REUSEADDR, as servers do, gets it.
    """
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def rpc_server(*, most_kib: int | None = None) -> Iterator[str]:
    """Run a server with one thread; gives its "host:port". It serves one client at a time.

    `most_kib`: what it can allocate, whatever it says is free.
    """
    limit = "unlimited" if most_kib is None else most_kib
    with free_port() as port:
        server = f"127.0.0.1:{port}"
        child = subprocess.Popen(
            ["sh", "-c", f'ulimit -d {limit}; exec "$@"', "sh", sys.executable, "-P", "-c", _SERVE, server],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _listens(child, port), "RPC server")
            yield server
        finally:
            child.kill()
            child.wait()


def _listens(child: subprocess.Popen[bytes], port: int) -> bool:
    assert child.poll() is None, "the RPC server ended"
    try:
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S).close()
    except OSError:
        return False
    return True
