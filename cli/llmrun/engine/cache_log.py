"""Reads the sizes of K/V and recurrent buffers from the library's log.

No C function tells them: `llama_get_memory_breakdown` is exported under a C++ name only and its layout
belongs to one compiler. The lines are written while a context is created (llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp) and give MiB with two decimals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from llmrun.engine.api import CacheBlock
from llmrun.units import MIB

_CREATING = re.compile(r"creating\s+(?P<what>.*?)KV cache, size = (?P<cells>\d+) cells")
_BUFFER = re.compile(r"\s(?P<device>\S+) (?P<what>KV|RS) buffer size =\s*(?P<mib>[\d.]+) MiB")
_SIZE = re.compile(r"size =\s*[\d.]+ MiB \(\s*(?P<cells>\d+) cells")

Kind = Literal["full", "swa", "recurrent"]


def read_cache_blocks(lines: Iterable[str]) -> tuple[CacheBlock, ...]:
    """Cache buffers in the order the library created them; cells are those of one stream."""
    blocks: list[CacheBlock] = []
    pending: list[tuple[Kind, str, int]] = []
    window = False
    for line in lines:
        if created := _CREATING.search(line):
            window = created["what"].strip() == "SWA"
        elif buffer := _BUFFER.search(line):
            kind: Kind = "recurrent" if buffer["what"] == "RS" else "swa" if window else "full"
            pending.append((kind, buffer["device"], round(float(buffer["mib"]) * MIB)))
        elif size := _SIZE.search(line):
            cells = int(size["cells"])
            blocks += [CacheBlock(kind, device, n_bytes, cells) for kind, device, n_bytes in pending]
            pending.clear()
    return tuple(blocks)


def read_flash_attention(lines: Iterable[str], asked: str) -> str:
    """What `auto` became: "on" or "off"."""
    if asked != "auto":
        return asked
    return "off" if any("Flash Attention not supported" in line for line in lines) else "on"
