"""Which devices layers can go to, as the library chooses among those its backends see."""

from __future__ import annotations

import pytest

from llmrun.engine import offload
from llmrun.engine.api import ModelParams
from llmrun.engine.bindings import Device, device_kind
from llmrun.engine.offload import gpus_in_use, seen_once
from llmrun.memory.plan import DeviceKind

CPU = Device("CPU", "a processor", "cpu", 1, 1, backend="CPU")
CARD = Device("CUDA0", "a card", "gpu", 1, 1, backend="CUDA", address="0000:01:00.0")
OTHER = Device("CUDA1", "a card", "gpu", 1, 1, backend="CUDA", address="0000:02:00.0")
SAME = Device("Vulkan0", "the same card", "gpu", 1, 1, backend="Vulkan", address="0000:01:00.0")
INSIDE = Device("Vulkan1", "graphics of the processor", "igpu", 1, 1, backend="Vulkan")
AGAIN = Device("SYCL0", "the same graphics", "igpu", 1, 1, backend="SYCL")
SERVER = Device("RPC0", "10.0.0.2:50052", "gpu", 1, 1, backend="RPC")
SECOND = Device("RPC1", "10.0.0.2:50052", "gpu", 1, 1, backend="RPC")


def test_a_gpu_that_two_backends_see_counts_once() -> None:
    assert seen_once([CARD, OTHER, SAME, CPU]) == [CARD, OTHER, CPU]
    assert seen_once([INSIDE, AGAIN, CPU]) == [INSIDE, CPU]


def test_devices_without_an_address_are_all_different() -> None:
    assert seen_once([CPU, SERVER, SECOND]) == [CPU, SERVER, SECOND]


@pytest.mark.parametrize(
    ("found", "used"),
    [
        ([CARD, SAME, INSIDE, CPU, SERVER], [SERVER, CARD]),
        ([INSIDE, AGAIN, CPU, SERVER], [SERVER, INSIDE]),
        ([INSIDE, CPU], [INSIDE]),
        ([CPU], []),
    ],
)
def test_devices_that_layers_can_go_to(
    monkeypatch: pytest.MonkeyPatch, found: list[Device], used: list[Device]
) -> None:
    monkeypatch.setattr(offload, "devices", lambda: tuple(found))
    assert gpus_in_use(ModelParams("")) == used
    assert gpus_in_use(ModelParams("", devices=())) == []
    assert gpus_in_use(ModelParams("", devices=tuple(gpu.name for gpu in reversed(used)))) == used[::-1]


@pytest.mark.parametrize(
    ("native", "backend", "system", "machine", "kind"),
    [
        (0, "CPU", "darwin", "arm64", "cpu"),
        (1, "MTL", "darwin", "arm64", "igpu"),
        (1, "MTL", "darwin", "x86_64", "gpu"),
        (1, "RPC", "darwin", "arm64", "gpu"),
        (1, "CUDA", "linux", "aarch64", "gpu"),
        (2, "Vulkan", "linux", "x86_64", "igpu"),
        (3, "BLAS", "darwin", "arm64", "accel"),
        (9, "new", "linux", "x86_64", "accel"),
    ],
)
def test_kinds(native: int, backend: str, system: str, machine: str, kind: DeviceKind) -> None:
    """Apple's GPUs compute in main memory, though Metal does not say so."""
    assert device_kind(native, backend, system, machine) == kind
