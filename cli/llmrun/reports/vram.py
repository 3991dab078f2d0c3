"""What `llmrun vram` knows about a model's memory, as values: made by `app`, shown by `ui`.

Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from llmrun.events import ModelInfo, RemoteModel

Verdict = Literal["fits", "partial", "too_large"]
Offload = Literal["all", "part", "none"]
RemedyKind = Literal["quantization", "kv_type", "context"]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where bytes go. `repack_bytes`: a second copy of weights for faster kernels, which only the engine
    can tell of."""

    weights_bytes: int = 0
    repack_bytes: int = 0
    kv_bytes: int = 0
    recurrent_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0

    @property
    def sum_bytes(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in BUCKETS)

    def __add__(self, other: Buckets) -> Buckets:
        return Buckets(*(getattr(self, name) + getattr(other, name) for name in BUCKETS))


BUCKETS: tuple[str, ...] = tuple(field.name for field in fields(Buckets))


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device, what it has to hold, and whether it can with the reserve left over."""

    name: str
    kind: str
    free_bytes: int
    total_bytes: int
    use: Buckets
    fits: bool


@dataclass(frozen=True, slots=True)
class VramSettings:
    """What was asked for, after the engine's rounding. `n_gpu_layers`: the output counts as one."""

    n_ctx: int
    n_seq: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    type_k: str
    type_v: str
    flash_attn: str
    swa_full: bool
    n_gpu_layers: int


@dataclass(frozen=True, slots=True)
class GridCell:
    """Memory on all devices with one context length and K/V type. `sum_bytes` None: the engine refuses it.

    `offload`: how much of the model the GPUs hold there, "none" without any.
    """

    n_ctx: int
    kv_type: str
    sum_bytes: int | None
    fits: bool
    offload: Offload


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One rule of the cache's size, in words, and the size after it."""

    text: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """A single change after which the model fits: its new value, and the bytes all devices hold then."""

    kind: RemedyKind
    value: str
    sum_bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedDevice:
    """One device by the formula, by the engine's dry run, and after a real load."""

    name: str
    formula: Buckets
    engine: Buckets
    measured: Buckets


@dataclass(frozen=True, slots=True)
class VramReport:
    """The memory of a model on given devices.

    `verdict`: "fits"; "partial" not as asked, but with fewer layers on the GPU or a shorter context;
    "too_large". `max_ctx`: the longest context that fits with these layers, 0 for none; `max_ctx_auto`: with
    layers chosen anew for it, None where they are fixed or there is no GPU. `n_layers`: all that
    can be offloaded, the output included. `n_cpu_moe`: layers whose experts stay on the CPU. `warnings` are
    sentences. `steps`, `verified`: empty unless asked for. `remote`: the model is not on this machine.
    """

    model: ModelInfo
    method: Literal["formula", "engine"]
    settings: VramSettings
    devices: tuple[DeviceUse, ...]
    kv_bytes_per_token: int
    verdict: Verdict
    max_ctx: int
    max_ctx_auto: int | None
    max_gpu_layers: int
    n_layers: int
    n_cpu_moe: int
    n_ctx_train: int
    reserve_bytes: int
    grid: tuple[GridCell, ...]
    remedies: tuple[Remedy, ...]
    warnings: tuple[str, ...]
    steps: tuple[ExplainedStep, ...] = ()
    verified: tuple[VerifiedDevice, ...] = ()
    remote: RemoteModel | None = None

    @property
    def totals(self) -> Buckets:
        """All devices together."""
        return sum((device.use for device in self.devices), Buckets())

    @property
    def fits(self) -> bool:
        """True where every device holds its part."""
        return all(device.fits for device in self.devices)
