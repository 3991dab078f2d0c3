"""Devices of other machines: the engine's RPC servers, each of which appears as one or more GPUs.

A library built with GGML_RPC speaks to them over TCP (ggml-rpc.cpp). It ends the process when a server
does not answer its first message as expected, so the same message is sent here first, on a connection of
our own: a server serves one connection at a time, and this one is closed before the library's opens.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrun.engine.bindings import native_function
from llmrun.errors import EngineFailure, NetworkFailure, UsageError

if TYPE_CHECKING:
    from socket import socket

_TIMEOUT_S = 5
_HELLO, _CAPABILITY_BYTES = 14, 24  # command number; room for transport options, all off
_VERSION = (7, 0)  # of ggml 0.25.3; major must match, minor may not be newer

_added: set[str] = set()


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Register the devices of each server ("host:port"); those already registered stay as they are.

    Raises:
        UsageError: not of the form host:port.
        EngineFailure: the library has no RPC, or speaks another version of it than the server.
        NetworkFailure: the server cannot be reached, is busy with another client, or is none.
    """
    for server in servers:
        if server in _added:
            continue
        host, port = split_server(server)
        try:
            add = native_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
        except EngineFailure:
            raise EngineFailure(
                f"the engine's library has no RPC, so {server} cannot be used",
                "rebuild it with `make clean chat`",
            ) from None
        _greet(server, host, port)
        register = native_function("ggml_backend_register", None, ctypes.c_void_p)
        registry = add(server.encode())
        if not registry:
            raise EngineFailure(f"the RPC server {server} offers no device")
        register(registry)
        _added.add(server)


def split_server(server: str) -> tuple[str, int]:
    """Host and port of "host:port".

    Raises:
        UsageError: it has another form.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{server!r} is no RPC server", "write it as HOST:PORT, such as 127.0.0.1:50052")
    return host, int(port)


def _greet(server: str, host: str, port: int) -> None:
    from socket import create_connection

    try:
        with create_connection((host, port), _TIMEOUT_S) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.sendall(struct.pack("<BQ", _HELLO, _CAPABILITY_BYTES) + bytes(_CAPABILITY_BYTES))
            answer = _receive(connection, 8 + 4 + _CAPABILITY_BYTES)
    except TimeoutError:
        raise NetworkFailure(
            f"the RPC server {server} does not answer within {_TIMEOUT_S} s",
            "it serves one client at a time: end the other one, or start another server",
        ) from None
    except OSError as error:
        raise NetworkFailure(
            f"the RPC server {server} cannot be reached: {error.strerror or error}",
            "check that it runs and listens there",
        ) from None
    size, major, minor = struct.unpack_from("<QBB", answer.ljust(10, b"\0"))
    if size != len(answer) - 8:
        raise NetworkFailure(f"what listens at {server} is no RPC server of the engine", "check the port")
    if major != _VERSION[0] or minor > _VERSION[1]:
        ours = ".".join(map(str, _VERSION))
        raise EngineFailure(
            f"the RPC server {server} speaks version {major}.{minor}, this library {ours}",
            "run a server from the same llama.cpp release",
        )


def _receive(connection: socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data
