"""What the engine's library is and whether it works, asked in a child process that may die of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmrun.engine.api import GpuLayers
from llmrun.engine.bindings import Device
from llmrun.engine.probe.child import ask

_BUILD_TIMEOUT_S, _GENERATE_TIMEOUT_S = 60, 120


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """The library: its version and that of the bindings, the path of libllama, and what it was built with.

    `backends` are those it can use on some machine, `devices` what they found on this one. `offloads`: it can
    put layers on a GPU. `system_info` is the library's own line on its features.
    """

    version: str
    bindings: str
    path: str
    system_info: str
    backends: tuple[str, ...]
    devices: tuple[Device, ...]
    offloads: bool

    @property
    def features(self) -> Mapping[str, Mapping[str, str]]:
        """Features of each backend by name, e.g. {"CPU": {"AVX2": "1", "REPACK": "1"}}."""
        return parse_system_info(self.system_info)


def parse_system_info(text: str) -> dict[str, dict[str, str]]:
    """The library's line "CPU : AVX2 = 1 | FMA = 1 | CUDA : USE_GRAPHS = 1 | " as a mapping."""
    found: dict[str, dict[str, str]] = {}
    backend = ""
    for part in text.split("|"):
        head, colon, rest = part.partition(" : ")
        if colon:
            backend, part = head.strip(), rest
        name, equals, value = part.partition("=")
        if equals and backend:
            found.setdefault(backend, {})[name.strip()] = value.strip()
    return found


def probe_build() -> EngineBuild:
    """The library as a child process sees it.

    Raises:
        EngineFailure: it is not installed, cannot be loaded, or kills its process.
    """
    answer = ask("build", {}, timeout_s=_BUILD_TIMEOUT_S)
    devices = tuple(Device(**device) for device in answer.pop("devices"))
    return EngineBuild(backends=tuple(answer.pop("backends")), devices=devices, **answer)


def probe_generation(*, extra_bufts: bool, gpu_layers: GpuLayers, n_threads: int) -> int:
    """Tokens that a tiny model generates in a child process, after a prompt of several.

    Raises:
        DoesNotFit: the system killed the child for want of memory.
        EngineFailure: the library crashed, failed, or computed no numbers.
    """
    question = {"extra_bufts": extra_bufts, "gpu_layers": gpu_layers, "n_threads": n_threads}
    made: int = ask("generate", question, timeout_s=_GENERATE_TIMEOUT_S)
    return made
