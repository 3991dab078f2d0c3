"""What an open model and context take, device by device: the child's side of `probe/sizes.py`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from llmrun.engine.amx import extra_bufts_are_safe
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import devices, library_path, native_log
from llmrun.engine.cache_log import LOG_STEP_BYTES, read_buffers, read_layer_devices
from llmrun.engine.context import Context
from llmrun.engine.model import Model, load_model
from llmrun.engine.offload import devices_of_buffers
from llmrun.engine.probe.breakdown import Breakdown, read_breakdown
from llmrun.engine.probe.pipeline import reserved_compute
from llmrun.engine.probe.sizes import DEFAULT_STATE_BYTES, DeviceSizes, ProbedSizes
from llmrun.engine.probe.weights import weights_by_device
from llmrun.errors import DoesNotFit
from llmrun.gguf.reader import read_header
from llmrun.units import format_bytes

_LOG_LINES = 200_000
_SMALLEST = ContextParams(n_ctx=256, n_batch=8, n_ubatch=8, swa_full=True)


@dataclass(frozen=True, slots=True)
class _Opened:
    """`by_name`: tensors were placed by their names."""

    model: Model
    load_log: tuple[str, ...]
    cpu: str
    dry: bool
    by_name: bool


def account(
    paths: Sequence[Path],
    model: ModelParams,
    context: ContextParams,
    *,
    dry: bool,
    state_bytes: int = DEFAULT_STATE_BYTES,
) -> ProbedSizes:
    """Open model and context, add up, and close them. Errors and `state_bytes` as in `probe_sizes`."""
    native_log.keep(_LOG_LINES)
    extra_bufts = extra_bufts_are_safe(library_path())
    loaded = load_model(
        model, extra_bufts=extra_bufts, progress=lambda _: None, cancelled=threading.Event(), dry=dry
    )
    cpu = next((device.name for device in devices() if device.kind == "cpu"), "CPU")
    by_name = bool(model.override_tensor or model.cpu_moe or model.n_cpu_moe)
    opened = _Opened(loaded, tuple(native_log.lines), cpu, dry, by_name)
    with closing(loaded):
        slot = _state_slot(opened, context) if loaded.recurrent else Counter[str]()
        if dry:
            _check_state(slot, context.n_seq, {cpu: state_bytes})
        with closing(Context(loaded, context)) as made:
            return _add_up(paths, opened, made, context, slot)


def _check_state(slot: Counter[str], n_seq: int, free: dict[str, int]) -> None:
    """Refuse a state that a device has no room for: `free`, or what its backend tells."""
    told = {device.name: device.free_bytes for device in devices() if device.total_bytes} | free
    for device, slot_bytes in slot.items():
        if slot_bytes * n_seq > told.get(device, slot_bytes * n_seq):
            raise DoesNotFit(
                f"the state of {n_seq} sequences takes {format_bytes(slot_bytes * n_seq)} on {device}, "
                f"{format_bytes(told[device])} are free; the engine allocates it even in a dry run",
                "ask for fewer sequences (-np)",
            )


def _state_slot(opened: _Opened, params: ContextParams) -> Counter[str]:
    """Bytes of one sequence's recurrent state by device: what a second sequence adds to a small context.

    All sequences of that context share its K/V cells, and a window is kept whole, so nothing else grows.
    """
    sizes = []
    for n_seq in (1, 2):
        small = replace(_SMALLEST, n_seq=n_seq, offload_kqv=params.offload_kqv)
        with closing(Context(opened.model, small)) as context:
            breakdown = read_breakdown(context.handle, opened.cpu)
            sizes.append(_sum_blocks(context, recurrent=True) if breakdown is None else breakdown.context)
    return sizes[1] - sizes[0]


def _sum_blocks(context: Context, *, recurrent: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for block in context.cache_blocks:
        if (block.kind == "recurrent") == recurrent:
            found[block.device] += block.size_bytes
    return found


def _add_up(
    paths: Sequence[Path], opened: _Opened, context: Context, params: ContextParams, slot: Counter[str]
) -> ProbedSizes:
    names = devices_of_buffers()
    breakdown = read_breakdown(context.handle, opened.cpu)
    if breakdown is None:
        state, kv, compute = _by_log(context, names)
    else:
        state, kv, compute = _exact(breakdown, slot, params.n_seq)
    layer_devices = read_layer_devices(opened.load_log)
    if opened.dry:
        n_gpus = len({*layer_devices} - {opened.cpu})
        scattered = opened.by_name or not params.offload_kqv or n_gpus > 1
        compute = reserved_compute(context.handle, native_log.lines, names, scattered=scattered) or compute
    tensors = [tensor for path in paths for tensor in read_header(path).tensors]
    weights = weights_by_device(
        tensors, layer_devices, opened.load_log, names, opened.cpu, mapped=opened.model.mapped
    )
    model, repack = (breakdown.model, breakdown.repack) if breakdown else (Counter[str](), Counter[str]())
    output = _output(params, opened.model.vocab.n_tokens, names)
    used = [opened.cpu, *(device.name for device in devices() if device.name != opened.cpu)]
    sizes = [
        DeviceSizes(
            device,
            weights[device],
            model[device],
            repack[device],
            kv[device],
            state[device],
            compute[device],
            output.get(device, 0),
        )
        for device in used
    ]
    return ProbedSizes(
        tuple(size for size in sizes if size.name == opened.cpu or size != DeviceSizes(size.name)),
        layer_devices,
        context.n_ctx,
        context.n_ctx_seq,
        context.n_batch,
        context.n_ubatch,
        context.flash_attn,
        exact=breakdown is not None,
    )


def _exact(
    breakdown: Breakdown, slot: Counter[str], n_seq: int
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """State, K/V and compute by device."""
    state = Counter({device: n_bytes * n_seq for device, n_bytes in slot.items()})
    return state, breakdown.context - state, breakdown.compute


def _by_log(context: Context, names: Mapping[str, str]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    compute = Counter(read_buffers(native_log.lines, "compute", names))
    return _sum_blocks(context, recurrent=True), _sum_blocks(context, recurrent=False), compute


def _output(params: ContextParams, n_vocab: int, names: Mapping[str, str]) -> dict[str, int]:
    """The output buffer holds a row of f32 logits for each sequence; the log says where, rounded."""
    logged = read_buffers(native_log.lines, "output", names)
    rows = 4 * n_vocab * params.n_seq
    return {name: rows if abs(rows - size) <= LOG_STEP_BYTES else size for name, size in logged.items()}
