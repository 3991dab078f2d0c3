"""Reads main memory as fast as this machine can: the ceiling of a decode step.

Each thread looks with libc's `memchr`, which uses the widest loads the CPU has, for a byte that its part of a
buffer does not hold. The buffer is several times larger than the caches, so nearly every byte comes from
memory. A pass lasts from the first thread's start to the last one's end. As in STREAM (McCalpin,
"Memory Bandwidth and Machine Balance in Current High Performance Computers", 1995) the best pass counts:
whatever disturbs a pass makes it slower, never faster.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Sequence

MIN_PASSES = 5
_FILL, _WANTED = 1, 0


def scan_passes(n_threads: int, size_bytes: int, lasting_s: float) -> list[float]:
    """Bytes a second of each pass over `size_bytes`: at least MIN_PASSES, more until `lasting_s` is over."""
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    find = libc.memchr
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    part = size_bytes // n_threads
    with mmap.mmap(-1, part * n_threads) as area:
        buffer = (ctypes.c_char * len(area)).from_buffer(area)
        start = ctypes.addressof(buffer)
        ctypes.memset(start, _FILL, len(area))
        spans = [_Reader(find, start + index * part, part) for index in range(n_threads)]
        rates = _passes(spans, len(area), lasting_s)
        del buffer  # the area cannot be closed while something points into it
    return rates


class _Reader:
    """One thread's part, and when it was last read."""

    def __init__(self, find: object, address: int, size_bytes: int) -> None:
        self._find, self._address, self._size_bytes = find, address, size_bytes
        self.began_s = self.ended_s = 0.0

    def read(self) -> None:
        self.began_s = time.perf_counter()
        self._find(self._address, _WANTED, self._size_bytes)  # type: ignore[operator]
        self.ended_s = time.perf_counter()


def _passes(readers: Sequence[_Reader], size_bytes: int, lasting_s: float) -> list[float]:
    barrier = threading.Barrier(len(readers) + 1)
    over = threading.Event()

    def work(reader: _Reader) -> None:
        while True:
            barrier.wait()
            if over.is_set():
                return
            reader.read()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(reader,), daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    rates: list[float] = []
    until_s = time.perf_counter() + lasting_s
    while len(rates) < MIN_PASSES or time.perf_counter() < until_s:
        barrier.wait()
        barrier.wait()
        took_s = max(r.ended_s for r in readers) - min(r.began_s for r in readers)
        rates.append(size_bytes / took_s)
    over.set()
    barrier.wait()
    for thread in threads:
        thread.join()
    return rates
