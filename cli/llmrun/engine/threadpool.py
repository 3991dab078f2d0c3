"""Worker threads that live as long as the context.

Without a pool of its own, a library built without OpenMP starts and ends its threads for every graph, that
is for every token. A pool that waits by polling for a while before it sleeps (level 50, as llama.cpp's own
tools) also resumes faster beside busy neighbours. The bindings lack these functions; the structure is
`ggml_threadpool_params` of ggml.h.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

from llmrun.engine.bindings import native_function
from llmrun.errors import EngineFailure

log = logging.getLogger("llmrun.engine")

_MAX_THREADS = 512  # GGML_MAX_N_THREADS


class _Params(ctypes.Structure):
    _fields_ = (
        ("cpumask", ctypes.c_bool * _MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class ThreadPools:
    """Pools for decode and prefill of one context, one pool if both use the same number of threads."""

    def __init__(self, n_threads: int, n_threads_batch: int) -> None:
        self._pools: list[Any] = []
        self._counts = (n_threads, n_threads_batch)

    def attach(self, context: Any) -> None:
        """Let `context` compute on these pools; a library without the functions keeps its own way.

        Raises:
            EngineFailure: the system does not grant so many threads.
        """
        try:
            defaults = native_function("ggml_threadpool_params_default", _Params, ctypes.c_int)
            new = native_function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(_Params))
            self._free = native_function("ggml_threadpool_free", None, ctypes.c_void_p)
            attach = native_function(
                "llama_attach_threadpool", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
            )
        except EngineFailure as error:
            log.info("no thread pool: %s", error.message)
            return
        counts = list(dict.fromkeys(self._counts))
        _check_threads(sum(count - 1 for count in counts))  # the caller's own thread works as well
        for count in counts:
            pool = new(ctypes.byref(defaults(count)))
            if pool:
                self._pools.append(pool)
        if self._pools:
            attach(context, self._pools[0], self._pools[-1])

    def close(self) -> None:
        """End the threads; only after the context is freed. Closing twice does nothing."""
        while self._pools:
            self._free(self._pools.pop())


def _check_threads(count: int) -> None:
    """Have as many threads at a time: the library ends the process where it cannot start one."""
    done = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise EngineFailure(
            f"the system lets this process start {len(started)} more threads, not {count}",
            "use fewer threads (-t), or raise the limits on processes and memory",
        ) from None
    finally:
        done.set()
        for thread in started:
            thread.join()
