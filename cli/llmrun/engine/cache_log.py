"""Reads the sizes of K/V, recurrent, compute and output buffers from the library's log.

No C function tells them: `llama_get_memory_breakdown` is exported under a C++ name only and its layout
belongs to one compiler. The lines are written while a context is created (llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-context.cpp) and give MiB with two decimals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from llmrun.engine.api import CacheBlock
from llmrun.units import MIB

_CREATING = re.compile(r"creating\s+(?P<what>.*?)KV cache, size = (?P<cells>\d+) cells")
_LAYER = re.compile(r"layer\s+\d+: dev = (?P<device>\S+)")
_BUFFER = re.compile(r"\s(?P<device>\S+) (?P<what>KV|RS) buffer size =\s*(?P<mib>[\d.]+) MiB")
_SIZE = re.compile(r"size =\s*(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells")
_OTHER = re.compile(r"\s(?P<device>\S+)\s+(?P<what>model|compute|output) buffer size =\s*(?P<mib>[\d.]+) MiB")
_ASSIGNED = re.compile(r"load_tensors: layer\s+(?P<layer>\d+) assigned to device (?P<device>[^\s,]+)")
_TURNED_OFF = ("Flash Attention not supported", "flash_attn is not compatible")

Kind = Literal["full", "swa", "recurrent"]

LOG_STEP_BYTES = MIB // 100
"""The log rounds to this."""


def read_cache_blocks(
    lines: Iterable[str], devices: Mapping[str, str] | None = None
) -> tuple[CacheBlock, ...]:
    """Cache buffers in the order the library created them; cells are those of one stream.

    `devices` names the device of a buffer type where they differ. In a dry run the buffers are empty and
    only the sum over them is told: it is shared by the number of layers.
    """
    blocks: list[CacheBlock] = []
    pending: list[tuple[Kind, str, int]] = []
    layers: Counter[str] = Counter()
    window = False
    for line in lines:
        if created := _CREATING.search(line):
            window = created["what"].strip() == "SWA"
        elif layer := _LAYER.search(line):
            layers[layer["device"]] += 1
        elif buffer := _BUFFER.search(line):
            kind: Kind = "recurrent" if buffer["what"] == "RS" else "swa" if window else "full"
            device = (devices or {}).get(buffer["device"], buffer["device"])
            pending.append((kind, device, _bytes(buffer["mib"])))
        elif size := _SIZE.search(line):
            if pending and not any(n_bytes for _, _, n_bytes in pending):
                pending = _shared(pending, _bytes(size["mib"]), layers)
            blocks += [
                CacheBlock(kind, device, n_bytes, int(size["cells"])) for kind, device, n_bytes in pending
            ]
            pending = []
            layers.clear()
    return tuple(blocks)


def read_buffers(
    lines: Iterable[str], what: Literal["model", "compute", "output"], devices: Mapping[str, str]
) -> dict[str, int]:
    """Bytes of the buffers for weights, computing or output on each device. `devices`: as above."""
    found: Counter[str] = Counter()
    for line in lines:
        if (buffer := _OTHER.search(line)) and buffer["what"] == what:
            found[_owner(buffer["device"], devices)] += _bytes(buffer["mib"])
    return dict(found)


def _owner(buffer: str, devices: Mapping[str, str]) -> str:
    """Weights that are mapped or repacked lie in types of their own: CPU_Mapped, AMX, Metal's MTL0_Mapped."""
    if buffer in devices:
        return devices[buffer]
    device = "CPU" if buffer == "AMX" else buffer.partition("_")[0]
    return devices.get(device, device)


def read_layer_devices(lines: Iterable[str]) -> tuple[str, ...]:
    """Device of each layer, the output as the layer after the last, from the log of loading a model."""
    found = {int(match["layer"]): match["device"] for line in lines if (match := _ASSIGNED.search(line))}
    return tuple(found[layer] for layer in sorted(found))


def read_flash_attention(lines: Iterable[str], asked: str) -> str:
    """What `asked` became: "on" or "off". The library turns "auto" off for a device, "on" too for a model."""
    return "off" if asked == "off" or any(sign in line for line in lines for sign in _TURNED_OFF) else "on"


def read_pipelined(lines: Iterable[str]) -> bool:
    """Whether several GPUs work on several micro-batches at a time; without room for that they do not."""
    said = [line for line in lines if "pipeline parallelism" in line]
    return bool(said) and "enabled" in said[-1]


def _bytes(mib: str) -> int:
    return round(float(mib) * MIB)


def _shared(
    pending: list[tuple[Kind, str, int]], total_bytes: int, layers: Mapping[str, int]
) -> list[tuple[Kind, str, int]]:
    counts = [layers.get(device, 0) for _, device, _ in pending]
    if not any(counts):
        counts = [1] * len(pending)
    return [
        (kind, device, total_bytes * count // sum(counts))
        for (kind, device, _), count in zip(pending, counts, strict=True)
    ]
