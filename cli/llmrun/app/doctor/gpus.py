"""GPUs that are in this machine, whether or not the engine was built to use them.

A device file or a kernel driver's own page tells that a driver runs; the PCI bus tells of a display adapter
without one (class 0x03, linux/include/linux/pci_ids.h; vendors by the PCI-SIG). Virtual adapters are of other
vendors and are left out.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Backend = Literal["cuda", "rocm", "vulkan", "metal"]

_DISPLAY = "0x03"
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class PresentGpu:
    """A kind of GPU in this machine. `backend` is the engine's for it, as `make GPU=` takes it.

    `registry`: names under which the engine lists backends that can use it. `driver`: one runs.
    """

    vendor: str
    backend: Backend
    registry: tuple[str, ...]
    driver: bool


def present_gpus(
    root: Path = _ROOT, system: str = sys.platform, machine: str | None = None
) -> tuple[PresentGpu, ...]:
    """Each kind once. `root` is where /dev, /proc and /sys lie."""
    if system == "darwin":
        apple = (machine or platform.machine()) == "arm64"
        return (PresentGpu("Apple", "metal", ("MTL", "Metal"), True),) if apple else ()
    vendors = set(_display_vendors(root))
    found = []
    nvidia = any(
        (
            (root / "proc/driver/nvidia/version").exists(),
            any(root.glob("dev/nvidia[0-9]*")),
            (root / "usr/lib/wsl/lib/libcuda.so.1").exists(),
        )
    )
    if nvidia or "0x10de" in vendors:
        found.append(PresentGpu("NVIDIA", "cuda", ("CUDA", "Vulkan"), nvidia))
    amd = (root / "dev/kfd").exists()
    if amd or "0x1002" in vendors:
        found.append(PresentGpu("AMD", "rocm", ("ROCm", "HIP", "Vulkan"), amd))
    if "0x8086" in vendors:
        found.append(PresentGpu("Intel", "vulkan", ("Vulkan", "SYCL"), any(root.glob("dev/dri/renderD*"))))
    return tuple(found)


def _display_vendors(root: Path) -> Iterator[str]:
    for device in sorted(root.glob("sys/bus/pci/devices/*")):
        try:
            if (device / "class").read_text("ascii").startswith(_DISPLAY):
                yield (device / "vendor").read_text("ascii").strip()
        except (OSError, ValueError):
            continue
