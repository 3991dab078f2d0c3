"""The C functions of llama.cpp and ggml, and the log that they write.

`llama_cpp/__init__` pulls in numpy, jinja2 and a 2,400-line class; the plain ctypes module beside it is
all this program needs, so a stub package stands in for the init file. ggml's functions are looked up
through libllama's own handle: opening libggml by path could load a second copy with an empty device list.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import platform
import sys
import threading
import types
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmrun.engine.abort import listen_for_abort
from llmrun.errors import EngineFailure
from llmrun.memory.plan import DeviceKind

log = logging.getLogger("llmrun.native")
log.addHandler(logging.NullHandler())  # without a handler, logging prints warnings on stderr itself

_LOG_LINES_KEPT = 4000
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # enum ggml_log_level
_LEVEL_CONTINUED = 5
_DEVICE_KINDS: dict[int, DeviceKind] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}
_METAL = "MTL"


@dataclass(frozen=True, slots=True)
class Device:
    """One device of ggml's registry. Memory is what the backend reports, in bytes.

    `pipelines`: it computes asynchronously and has events to wait for, as the scheduler's pipeline needs.
    `maps`: its weights may come from a mapped file; where they should not, loading takes many times as long
    or does not end. `backend` sees it; `address` is its place on the PCI bus, empty where it does not tell.
    `buffer` is what its memory is called where tensors are put there: "RPC0[host:port]" of any server.
    """

    name: str
    description: str
    kind: DeviceKind
    free_bytes: int
    total_bytes: int
    pipelines: bool = True
    maps: bool = True
    backend: str = ""
    address: str = ""
    buffer: str = ""


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props (ggml-backend.h)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("runs_async", ctypes.c_bool),
        ("host_buffer", ctypes.c_bool),
        ("buffer_from_host_ptr", ctypes.c_bool),
        ("events", ctypes.c_bool),
        ("mmap_support", ctypes.c_bool),
        ("later", ctypes.c_uint8 * 64),  # room for what a newer library may add
    )


class _Unfinished(threading.local):
    """The line that a thread has written the beginning of."""

    level = logging.INFO
    text = ""


class NativeLog:
    """Keeps the library's last lines and passes them to `logging`; nothing reaches the terminal by itself.

    The library may write from several threads at once.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LOG_LINES_KEPT)
        self._unfinished = _Unfinished()
        self.last_error = ""

    @property
    def lines(self) -> list[str]:
        """The lines kept, as they are at this moment."""
        return list(self._lines)

    def write(self, level: int, text: str) -> None:
        """Take one call of the log callback; a line may arrive in parts."""
        line = self._unfinished
        if level != _LEVEL_CONTINUED:
            line.level = _LEVELS.get(level, logging.INFO)
        *finished, line.text = (line.text + text).split("\n")
        for each in finished:
            if each.strip():
                self._take(line.level, each)

    def _take(self, level: int, line: str) -> None:
        self._lines.append(line)
        if level >= logging.ERROR:
            self.last_error = line.strip()
        log.log(level, "%s", line)

    def keep(self, n_lines: int) -> None:
        """Keep that many of the last lines from now on; loading a large model writes thousands."""
        self._lines = deque(self._lines, maxlen=n_lines)

    def clear(self) -> None:
        """Forget what was written so far."""
        self._lines.clear()
        self.last_error = ""


native_log = NativeLog()


@lru_cache(maxsize=1)
def library() -> Any:
    """The `llama_cpp.llama_cpp` module, its log redirected and backends started.

    Raises:
        EngineFailure: the package or its shared library cannot be loaded.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise EngineFailure("the engine is not installed", "`make chat` builds and installs it")
    if "llama_cpp" not in sys.modules:
        stub = types.ModuleType("llama_cpp")
        stub.__path__ = list(spec.submodule_search_locations)
        stub.__spec__ = spec  # else a later find_spec("llama_cpp") raises ValueError
        sys.modules["llama_cpp"] = stub
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an abort of the library starts a debugger first
    try:
        import llama_cpp.llama_cpp as module
    except (OSError, RuntimeError, AttributeError) as error:
        raise EngineFailure(
            f"the engine's library cannot be loaded: {error}", "rebuild it with `make clean chat`"
        ) from error
    module.llama_log_set(_log_callback(module), None)
    _abort_callback(module)
    module.llama_backend_init()
    return module


@lru_cache(maxsize=1)
def _log_callback(module: Any) -> Any:
    def on_log(level: int, text: bytes, _user_data: object) -> None:
        native_log.write(level, text.decode("utf-8", "replace"))

    return module.llama_log_callback(on_log)  # the cache keeps it alive as long as the library


@lru_cache(maxsize=1)
def _abort_callback(module: Any) -> Any:
    if not hasattr(module._lib, "ggml_set_abort_callback"):
        return None
    callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    return listen_for_abort(module._lib, callback_type, lambda: native_log.lines)


def native_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of libllama or one of the ggml libraries it links that the bindings leave out.

    Raises:
        EngineFailure: the library has no such function.
    """
    try:
        function = getattr(library()._lib, name)
    except AttributeError as error:
        raise EngineFailure(f"the engine's library has no {name}", "rebuild the engine") from error
    function.restype, function.argtypes = result, list(arguments)
    return function


def library_path() -> str:
    """Path of the loaded libllama."""
    return str(library()._lib._name)


def devices() -> tuple[Device, ...]:
    """Every device the library's backends found, in ggml's order."""
    properties = native_function(
        "ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.POINTER(_Properties)
    )
    registry_of = native_function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
    name_of = native_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    buffer_of = native_function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    buffer_name_of = native_function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    found = []
    for device in device_handles():
        props = _Properties()
        properties(device, ctypes.byref(props))
        backend = name_of(registry_of(device)).decode()
        buffer = buffer_of(device)
        found.append(
            Device(
                props.name.decode(),
                props.description.decode("utf-8", "replace"),
                device_kind(props.type, backend, sys.platform, platform.machine()),
                props.memory_free,
                props.memory_total,
                props.runs_async and props.events,
                props.mmap_support,
                backend,
                (props.device_id or b"").decode(),
                buffer_name_of(buffer).decode("utf-8", "replace") if buffer else "",
            )
        )
    return tuple(found)


def device_kind(native: int, backend: str, system: str, machine: str) -> DeviceKind:
    """Kind of a device of this ggml_backend_dev_type. Apple's processors share main memory with their GPUs,
    which Metal lists like any other (ggml_backend_metal_device_get_type)."""
    if (backend, system, machine) == (_METAL, "darwin", "arm64"):
        return "igpu"
    return _DEVICE_KINDS.get(native, "accel")


def device_handles() -> tuple[int, ...]:
    """Addresses of the registered devices, in ggml's order."""
    count = native_function("ggml_backend_dev_count", ctypes.c_size_t)
    get = native_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return tuple(get(index) for index in range(count()))


def backends() -> tuple[tuple[str, int], ...]:
    """Name and number of devices of each registered backend, those of RPC servers included."""
    pointer = ctypes.c_void_p
    count = native_function("ggml_backend_reg_count", ctypes.c_size_t)
    get = native_function("ggml_backend_reg_get", pointer, ctypes.c_size_t)
    name_of = native_function("ggml_backend_reg_name", ctypes.c_char_p, pointer)
    n_devices = native_function("ggml_backend_reg_dev_count", ctypes.c_size_t, pointer)
    found = map(get, range(count()))
    return tuple((name_of(each).decode("utf-8", "replace"), n_devices(each)) for each in found)


def library_version() -> str:
    """The library's own version text, with ggml's commit where it tells one."""
    version: str = library().llama_version().decode("utf-8", "replace")
    try:
        commit = native_function("ggml_commit", ctypes.c_char_p)()
    except EngineFailure:
        return version
    return f"{version} ({commit.decode()})" if commit else version
