"""What `llmrun doctor` finds about the engine: its build, its devices, and whether it generates.

Everything that can crash happens in child processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from llmrun.app.doctor.gpus import PresentGpu, present_gpus
from llmrun.engine.amx import cpu_flags, extra_bufts_are_safe
from llmrun.engine.api import GpuLayers
from llmrun.engine.selfcheck import EngineBuild, probe_build, probe_generation
from llmrun.engine.threads import ReadText, read_text, usable_threads
from llmrun.errors import EngineFailure, LlmrunError
from llmrun.reports.doctor import Finding
from llmrun.units import format_bytes

REBUILD = "`make clean chat` builds it for this machine"
_GPU_KINDS = ("gpu", "igpu")
# a CPU's flag in /proc/cpuinfo, and the engine's name for kernels that use it
_FAST = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
_AMX = {"amx_tile", "amx_int8", "amx_bf16"}


@dataclass(frozen=True, slots=True)
class EngineProbes:
    """How the engine is asked; replaced by tests."""

    build: Callable[[], EngineBuild] = probe_build
    repacking_is_safe: Callable[[str], bool] = extra_bufts_are_safe
    generate: Callable[[bool, GpuLayers, int], int] = lambda extra_bufts, layers, threads: probe_generation(
        extra_bufts=extra_bufts, gpu_layers=layers, n_threads=threads
    )
    gpus: Callable[[], Sequence[PresentGpu]] = present_gpus
    read: ReadText = read_text


def failed(check: str, error: LlmrunError) -> Finding:
    """An error that keeps models from running; what has no hint died in the library."""
    return Finding(check, "fail", error.message, error.hint or REBUILD, exit_code=error.exit_code)


def engine_findings(probes: EngineProbes) -> Iterator[Finding]:
    """The engine's part, what cannot be asked after a failure left out."""
    try:
        build = probes.build()
    except LlmrunError as error:
        yield failed("engine", error)
        return
    yield _version(build)
    yield _kernels(build, cpu_flags(probes.read("/proc/cpuinfo") or ""))
    for device in build.devices:
        yield Finding(
            "device",
            "ok",
            f"{device.name}: {device.description}"
            + (
                ""
                if device.kind == "cpu"
                else f", {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free"
            ),
            data=asdict(device),
        )
    yield from _gpus(probes.gpus(), build)
    try:
        safe = probes.repacking_is_safe(build.path)
    except LlmrunError as error:
        yield failed("amx", error)
        return
    yield _amx(safe, cpu_flags(probes.read("/proc/cpuinfo") or ""))
    yield _generation(probes, build, safe)


def _version(build: EngineBuild) -> Finding:
    text = f"llama.cpp {build.version}"
    if build.bindings:
        text += f", llama-cpp-python {build.bindings}"
    data = {"version": build.version, "bindings": build.bindings, "path": build.path}
    return Finding("engine", "ok", text, data=data)


def _kernels(build: EngineBuild, cpu: frozenset[str]) -> Finding:
    """Backends and features, and what the CPU can do that the build does not use."""
    features = build.features
    used = features.get("CPU", {})
    missing = [name for flag, name in _FAST.items() if flag in cpu and name not in used]
    openmp = "OPENMP" in used
    text = f"backends {', '.join(build.backends)}; OpenMP {'on' if openmp else 'off'}"
    text += f"; {' '.join(name for name, value in used.items() if value == '1' and name != 'OPENMP')}"
    data = {
        "backends": list(build.backends),
        "features": features,
        "openmp": openmp,
        "gpu_offload": build.offloads,
        "unused_cpu_features": missing,
    }
    if missing:
        return Finding("build", "warn", f"{text}. The CPU has {', '.join(missing)} as well", REBUILD, data)
    return Finding("build", "ok", text, data=data)


def _gpus(present: Sequence[PresentGpu], build: EngineBuild) -> Iterator[Finding]:
    """One finding a kind; where there is none, and the engine lists none either, that."""
    if not present and not any(device.kind in _GPU_KINDS for device in build.devices):
        yield Finding("gpu", "ok", "none found in this machine: all layers run on the CPU")
    for gpu in present:
        yield _gpu(gpu, build)


def _gpu(gpu: PresentGpu, build: EngineBuild) -> Finding:
    data = asdict(gpu)
    rebuild = f"`make chat GPU={gpu.backend}` builds the engine for it"
    if any(device.kind in _GPU_KINDS for device in build.devices):
        return Finding("gpu", "ok", f"{gpu.vendor} GPU: the engine lists a GPU", data=data)
    if set(build.backends) & set(gpu.registry):
        see = "nvidia-smi and CUDA_VISIBLE_DEVICES" if gpu.vendor == "NVIDIA" else "its driver"
        said = f"{gpu.vendor} GPU: the engine is built for it and sees no device"
        return Finding("gpu", "warn", said, f"check {see}", data)
    if not gpu.driver:
        said = f"{gpu.vendor} GPU on the bus, but no driver runs"
        return Finding("gpu", "warn", said, f"install its driver; then {rebuild}", data)
    return Finding("gpu", "warn", f"{gpu.vendor} GPU, which this engine is not built to use", rebuild, data)


def _amx(safe: bool, cpu: frozenset[str]) -> Finding:
    if not cpu & _AMX:
        return Finding("amx", "ok", "the CPU has no AMX", data={"cpu": False, "repacked_weights": safe})
    data = {"cpu": True, "repacked_weights": safe}
    if safe:
        return Finding("amx", "ok", "the CPU has AMX; repacked weights passed their trial", data=data)
    return Finding(
        "amx",
        "warn",
        "this build crashes with repacked weights on a CPU with AMX, so they are off: prefill is slower",
        REBUILD,
        data,
    )


def _generation(probes: EngineProbes, build: EngineBuild, extra_bufts: bool) -> Finding:
    """A tiny model, written on the spot, generates; with GPUs on them, and where that fails on the CPU."""
    gpus = any(device.kind in _GPU_KINDS for device in build.devices)
    threads = usable_threads()
    try:
        made = probes.generate(extra_bufts, "all" if gpus else 0, threads)
    except LlmrunError as error:
        if not gpus:
            return failed("generation", error)
        return _without_gpu(probes, extra_bufts, threads, error)
    where = "the GPU" if gpus else "the CPU"
    said = f"a tiny model generates {made} tokens on {where}"
    return Finding("generation", "ok", said, data={"tokens": made, "gpu": gpus})


def _without_gpu(probes: EngineProbes, extra_bufts: bool, threads: int, error: LlmrunError) -> Finding:
    try:
        probes.generate(extra_bufts, 0, threads)
    except LlmrunError:
        return failed("generation", error)
    said = f"on the GPU: {error.message}. On the CPU a tiny model generates"
    return failed("generation", EngineFailure(said, "run with -ngl 0, or " + REBUILD))
