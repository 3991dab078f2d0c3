"""The devices a plan can use: those the engine sees, main memory as this process may use it, and those the
user names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from llmrun.app.memory.host_memory import HostMemory, host_memory
from llmrun.engine.api import GpuLayers, ModelParams
from llmrun.engine.bindings import Device
from llmrun.engine.offload import seen_once
from llmrun.engine.probe.sizes import probe_devices
from llmrun.errors import EngineFailure, UsageError
from llmrun.memory.placement import gpus_of
from llmrun.memory.plan import DeviceInfo

_HOST = "CPU"


class DeviceProbe:
    """Asks the engine for its devices in the background; it takes as long as all the rest of an estimate."""

    def __init__(
        self, rpc: Sequence[str] = (), probe: Callable[[Sequence[str]], tuple[Device, ...]] = probe_devices
    ) -> None:
        self._found: tuple[Device, ...] = ()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, args=(rpc, probe), daemon=True)
        self._thread.start()

    def _ask(self, rpc: Sequence[str], probe: Callable[[Sequence[str]], tuple[Device, ...]]) -> None:
        try:
            self._found = probe(rpc)
        except BaseException as error:  # noqa: BLE001 raised again in the thread that waits
            self._failure = error

    def result(self) -> tuple[tuple[DeviceInfo, ...], str]:
        """The devices, and why there is the CPU alone where the engine cannot be asked (empty: it could).

        Raises:
            NetworkFailure, UsageError: a server the user named does not answer.
        """
        host = host_memory()
        self._thread.join()
        failure = self._failure
        if isinstance(failure, EngineFailure):
            return known_devices((), host), failure.message
        if failure is not None:
            raise failure
        return known_devices(self._found, host), ""


def known_devices(found: Sequence[Device], host: HostMemory) -> tuple[DeviceInfo, ...]:
    """The engine's devices, each once, the CPU first and with the memory of `host`.

    So has a device that tells of no memory at all, as the engine itself takes it (load_tensors in
    src/llama-model.cpp).
    """
    name = next((device.name for device in found if device.kind == "cpu"), _HOST)
    others = []
    for d in seen_once(found):
        told = d.total_bytes or d.kind == "accel"
        free, total = (d.free_bytes, d.total_bytes) if told else (host.free_bytes, host.total_bytes)
        if d.kind != "cpu":
            others.append(DeviceInfo(d.name, d.kind, free, total, d.pipelines, d.maps, d.buffer))
    cpu = DeviceInfo(name, "cpu", host.free_bytes, host.total_bytes, space_bytes=host.space_bytes)
    return (cpu, *others)


def with_named(devices: Sequence[DeviceInfo], named: Mapping[str, int]) -> tuple[DeviceInfo, ...]:
    """`devices` with as much free memory as `named` says; a name that is new stands for a further GPU.

    A GPU with no memory at all is left out, so that naming it so plans without it.
    """
    present = {device.name for device in devices}
    changed = [
        replace(d, free_bytes=named[d.name], total_bytes=max(d.total_bytes, named[d.name]))
        if d.name in named
        else d
        for d in devices
    ]
    added = [DeviceInfo(name, "gpu", size, size) for name, size in named.items() if name not in present]
    return tuple(d for d in (*changed, *added) if d.kind == "cpu" or named.get(d.name) != 0)


def check_present(found: Sequence[DeviceInfo], names: Iterable[str], hint: str) -> None:
    """Raise `UsageError` with this hint for a name that no device has."""
    present = {device.name for device in found}
    for name in names:
        if name not in present:
            raise UsageError(f"the engine sees no device {name}, only {', '.join(sorted(present))}", hint)


def require_gpu(layers: GpuLayers, devices: Sequence[DeviceInfo]) -> None:
    """Raise `UsageError` where layers are asked for and none of `devices` can take them."""
    if layers not in (0, "auto") and not gpus_of(devices):
        raise UsageError(
            f"-ngl {layers}: there is no GPU device", "leave out --strict to keep all layers on the CPU"
        )


def on_devices(
    model: ModelParams, found: Sequence[DeviceInfo], devices: Sequence[DeviceInfo], *, named: bool
) -> ModelParams:
    """The model on those of `devices` that the engine has `found`.

    `named`: the free memory of `devices` is the user's word; the engine would share by what it finds itself.
    """
    names, gpus = {device.name for device in found}, [gpu.name for gpu in gpus_of(found)]
    used = [gpu for gpu in gpus_of(devices) if gpu.name in names]
    if [gpu.name for gpu in used] != gpus:
        model = replace(model, devices=tuple(gpu.name for gpu in used))
    if not used:
        return replace(model, gpu_layers=0) if gpus else model
    if named and len(used) > 1 and not model.tensor_split and model.main_gpu is None:
        model = replace(model, tensor_split=tuple(float(gpu.free_bytes) for gpu in used))
    return model
