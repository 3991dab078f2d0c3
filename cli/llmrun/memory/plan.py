"""What is asked for, what is there, and what comes out: the values of an estimate. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrun.reports.vram import Buckets, Verdict

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]
Method = Literal["formula", "engine"]

DEFAULT_RESERVE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A model and context as the engine would be asked for them.

    `n_ctx` counts all cells, 0 = trained length. `gpu_layers` counts back from the output. `split_mode`
    "none" puts everything on GPU number `main_gpu`; "layer" divides by `tensor_split`, or by free memory
    where that is empty. `overrides` are pairs of a pattern for tensor names and the name of a device, or of
    its buffers; the first that matches decides. The engine asks for logits of one position a sequence, as
    this program does.
    """

    n_ctx: int = 8192
    n_seq: int = 1
    kv_unified: bool = True
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: Literal["on", "off"] = "on"
    swa_full: bool = False
    gpu_layers: int = 0
    offload_kqv: bool = True
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    split_mode: Literal["layer", "none"] = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    use_mmap: bool = True


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device and its memory as its backend reports it.

    `pipelines`: it computes asynchronously and can wait for others, as the engine's pipeline wants of all.
    `maps`: it takes weights from a mapped file; a model of which it has layers is read where it does not.
    `buffer`: what its memory is called where that is not the device's name. `space_bytes`: of main memory,
    what a limit on the address space leaves, mapped files included.
    """

    name: str
    kind: DeviceKind
    free_bytes: int
    total_bytes: int
    pipelines: bool = True
    maps: bool = True
    buffer: str = ""
    space_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one device has to hold, and whether it does with the reserve left over."""

    device: DeviceInfo
    use: Buckets
    fits: bool


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of a plan on given devices.

    `n_ctx`, `n_ctx_seq`: after the engine's rounding. `kv_bytes_per_token`: what one more cell costs while
    windows and states stay as they are. `verdict`: "fits" everywhere; "partial" not as planned, but with
    fewer layers on the GPU or a shorter context; else "too_large". `max_ctx`: the longest context that
    fits with these layers, at most the trained length, 0 for none. `max_gpu_layers`: the most layers that
    fit on the GPUs with this context. `unmodelled`: what the figures leave out, mostly empty.
    """

    method: Method
    plan: MemoryPlan
    n_ctx: int
    n_ctx_seq: int
    devices: tuple[DeviceReport, ...]
    totals: Buckets
    kv_bytes_per_token: int
    verdict: Verdict
    max_ctx: int
    max_gpu_layers: int
    unmodelled: str = ""
