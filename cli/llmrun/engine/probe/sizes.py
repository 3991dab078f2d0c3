"""Exact memory sizes of a model and context: from a dry run of the engine, or from a real load.

The dry run opens header-only copies of the model's files with `no_alloc`: the engine builds its graphs and
adds up every buffer, but allocates only recurrent state. Both run in a child process.

Dry and real sizes are equal to the byte. Where several GPUs hold layers, tensors are placed by name or K/V
stay on the CPU, that takes a correction which allocates compute buffers for a moment (`probe/pipeline.py`).
If the devices have no room even for those, compute is not exact: too high where the engine pipelines batches
through GPUs, a little off where tensors are placed by name, on the wrong device without flash attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import Device
from llmrun.engine.flash import AttentionShape, TypePair
from llmrun.engine.probe.child import DRY_MEMORY_BYTES, ask
from llmrun.units import GIB

DEFAULT_STATE_BYTES = 4 * GIB
_DEVICES_TIMEOUT_S = 60  # a driver that is not kept loaded takes seconds to start, for each GPU
_DRY_TIMEOUT_S = 90
_LOAD_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """What one device holds, in bytes.

    `weights_bytes` sums the file's tensors that lie here, `buffer_bytes` is what the engine reserves for
    them (0 where it does not tell; a mapped file counts with its gaps), `repack_bytes` a second copy in the
    layout of the CPU's fastest kernels.
    """

    name: str
    weights_bytes: int = 0
    buffer_bytes: int = 0
    repack_bytes: int = 0
    kv_bytes: int = 0
    recurrent_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProbedSizes:
    """Sizes for each device, with what the engine made of the parameters.

    `devices` lists those that hold something, the CPU first. `layer_devices` names the device of each
    layer; the last entry is the output's. `exact` False: K/V, state and compute are rounded to 0.01 MiB
    and repacked weights are unknown, because this platform's library tells no more.
    """

    devices: tuple[DeviceSizes, ...]
    layer_devices: tuple[str, ...]
    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    flash_attn: str
    exact: bool

    def on(self, device: str) -> DeviceSizes:
        """Sizes on a device, zeros where it holds nothing."""
        return next((sizes for sizes in self.devices if sizes.name == device), DeviceSizes(device))


def probe_devices(rpc: Sequence[str] = ()) -> tuple[Device, ...]:
    """Every device the engine sees, those of the RPC servers ("host:port") included.

    Raises:
        EngineFailure, NetworkFailure, UsageError: the engine fails, or a server does.
    """
    found = ask("devices", {"rpc": list(rpc)}, timeout_s=_DEVICES_TIMEOUT_S)
    return tuple(Device(**device) for device in found)


def probe_flash_attention(
    names: Sequence[str], shapes: Sequence[AttentionShape], pairs: Sequence[TypePair], *, rpc: Sequence[str]
) -> dict[str, list[TypePair]]:
    """As `flash_attention_types`, with the devices of the RPC servers; errors as in `probe_devices`."""
    question = {
        "devices": list(names),
        "shapes": [asdict(shape) for shape in shapes],
        "pairs": list(pairs),
        "rpc": list(rpc),
    }
    found = ask("flash", question, timeout_s=_DEVICES_TIMEOUT_S)
    return {name: [(k, v) for k, v in able] for name, able in found.items()}


def probe_sizes(
    paths: Sequence[Path],
    model: ModelParams,
    context: ContextParams,
    *,
    state_bytes: int = DEFAULT_STATE_BYTES,
) -> ProbedSizes:
    """Sizes by a dry run on `paths`, all parts of the model in order; no tensor data is read.

    Recurrent state is allocated all the same: `state_bytes` is how much of it main memory may hold. It is
    computed from one sequence's before the rest is allocated.

    Raises:
        NotAModel, DoesNotFit, UsageError, NetworkFailure, EngineFailure: the engine refuses the model or
            the combination of parameters, or has no room for the state; the message gives its reason.
    """
    bound = DRY_MEMORY_BYTES + state_bytes
    return _probe("sizes", paths, model, context, _DRY_TIMEOUT_S, bound, state_bytes=state_bytes)


def measure_sizes(paths: Sequence[Path], model: ModelParams, context: ContextParams) -> ProbedSizes:
    """Sizes after really loading the model; errors as in `probe_sizes`."""
    return _probe("measure", paths, model, context, _LOAD_TIMEOUT_S, None)


def _probe(
    entry: str,
    paths: Sequence[Path],
    model: ModelParams,
    context: ContextParams,
    timeout_s: int,
    memory_bytes: int | None,
    **more: int,
) -> ProbedSizes:
    question = {
        "paths": [str(path) for path in paths],
        "model": asdict(replace(model, path=str(paths[0]))),
        "context": asdict(context),
        **more,
    }
    answer = ask(entry, question, timeout_s=timeout_s, memory_bytes=memory_bytes)
    devices = tuple(DeviceSizes(**device) for device in answer.pop("devices"))
    return ProbedSizes(devices, tuple(answer.pop("layer_devices")), **answer)
