"""What a benchmark measured, and what it must have read: from an open model to the values of a record."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llmrun.app.bench.peak_memory import peak_rss_bytes
from llmrun.app.loading import Opened
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.app.plan import context_params, model_params
from llmrun.engine.api import EngineFacts
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.traffic import active_weight_bytes, step_bytes
from llmrun.reports.bench import BenchTest, Memory, Subject, Traffic

_FLASH = {"auto": -1, "off": 0, "on": 1}
_LOAD_MODES = {
    (False, False): "none",
    (True, False): "mmap",
    (False, True): "mlock",
    (True, True): "mmap+mlock",
}
_CPU = "CPU"


def header_digest(path: Path, header: GgufHeader) -> str:
    """SHA-256 of the file's header: metadata and tensor table, not the weights, which may be gigabytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(header.data_offset))
    return digest.hexdigest()


def subject_of(opened: Opened, digest: str) -> Subject:
    """Build, machine, model and settings of an open model."""
    made, identity, hardware = opened.engine.facts, opened.engine.facts.identity, opened.settings.hardware
    layers = hardware.n_gpu_layers
    split = hardware.tensor_split
    return Subject(
        build=identity.build,
        backends=identity.backends,
        cpu_info=identity.cpu_info,
        gpu_info=identity.gpu_info,
        model_filename=opened.info.path,
        model_ref=opened.info.ref,
        model_type=identity.model_type,
        model_bytes=identity.model_bytes,
        n_params=identity.n_params,
        model_digest=digest,
        quant=opened.info.quant,
        n_batch=hardware.n_batch,
        n_ubatch=hardware.n_ubatch,
        n_threads=made.n_threads,
        type_k=made.type_k,
        type_v=made.type_v,
        n_gpu_layers=layers if isinstance(layers, int) else -1,
        n_gpu_layers_offloaded=made.gpu_layers,
        n_cpu_moe=hardware.n_cpu_moe,
        main_gpu=-1 if hardware.main_gpu is None else hardware.main_gpu,
        no_kv_offload=not hardware.offload_kqv,
        flash_attn=_FLASH[hardware.flash_attn],
        flash_attn_used=made.flash_attn,
        tensor_split="/".join(f"{share:.2f}" for share in split) if split else "0.00",
        overrides=";".join(hardware.override_tensor) or "none",
        load_mode=_LOAD_MODES[made.mapped, hardware.use_mlock],
        repack=made.extra_bufts,
    )


def traffic_of(
    facts: MemoryFacts, opened: Opened, test: BenchTest, rate: float | None, machine: float | None
) -> Traffic | None:
    """What decode read a second at `rate` tokens a second over all sequences; None for tests without a rate.

    The machine's bandwidth says nothing about layers on a GPU, and is left out there.
    """
    if not rate:
        return None
    context = context_params(opened.settings, facts.n_ctx_train)
    plan = memory_plan(facts, model_params(opened.settings, opened.info.path), context)
    depth = test.n_depth + test.n_prompt + test.n_gen / 2
    size = step_bytes(facts, plan, depth, test.n_parallel)
    weights = active_weight_bytes(facts, test.n_parallel)
    if opened.engine.facts.gpu_layers:
        machine = None
    steps = rate / test.n_parallel
    ceiling = None if machine is None else machine / size * test.n_parallel
    return Traffic(size, weights, size * steps, machine, ceiling)


def memory_of(made: EngineFacts) -> Memory:
    """Peak main memory since it was reset, and what the engine reserved on each device."""
    devices: dict[str, int] = {}
    for sizes in (made.weights_bytes, made.compute_bytes):
        for device, size in sizes.items():
            devices[device] = devices.get(device, 0) + size
    for block in made.cache_blocks:
        devices[block.device] = devices.get(block.device, 0) + block.size_bytes
    beside = [size for device, size in devices.items() if device != _CPU]
    return Memory(peak_rss_bytes(), devices, sum(beside) if beside else None)
