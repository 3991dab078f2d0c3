"""`llmrun doctor`: everything that a model needs to run here, looked at once, with what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from llmrun.app.doctor.engine import EngineProbes, engine_findings
from llmrun.app.doctor.machine import (
    MachineProbes,
    bandwidth_finding,
    cpu_finding,
    disk_findings,
    download_findings,
    memory_finding,
    model_finding,
    network_finding,
    prefix_finding,
    settings_findings,
)
from llmrun.app.settings import SettingSources
from llmrun.engine.threads import usable_threads
from llmrun.errors import ModelNotFound
from llmrun.reports.doctor import DoctorReport, Finding

_PATIENCE_S = 4.0
_ANY_REPO = "llmrun/reachable"


def reach_hub() -> tuple[str, float]:
    """Address of the Hub and the seconds until it answered; a "not found" is an answer.

    Raises:
        NetworkFailure: it does not answer or refuses, or HF_HUB_OFFLINE forbids to ask.
    """
    from llmrun.store.hub import Hub

    hub = Hub(connect_s=_PATIENCE_S, read_s=_PATIENCE_S)
    asked_s = time.perf_counter()
    with suppress(ModelNotFound):
        hub.listing(_ANY_REPO)
    return hub.endpoint, time.perf_counter() - asked_s


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What to look at. `network`: ask the Hub as well."""

    env: Mapping[str, str]
    network: bool = False
    engine: EngineProbes = field(default_factory=EngineProbes)
    machine: MachineProbes = field(default_factory=MachineProbes)
    reach: Callable[[], tuple[str, float]] = reach_hub


def examine(request: DoctorRequest) -> DoctorReport:
    """All findings; never raises for what is wrong with the machine."""
    return DoctorReport(tuple(_findings(request)))


def _findings(request: DoctorRequest) -> Iterator[Finding]:
    machine = request.machine
    yield from engine_findings(request.engine)
    yield cpu_finding(machine.read)
    yield memory_finding(machine.memory())
    yield bandwidth_finding(machine, usable_threads())
    yield from disk_findings(request.env, machine.free_bytes)
    settings, found = settings_findings(SettingSources(env=request.env))
    yield from found
    if settings is not None:
        yield prefix_finding(request.env, settings)
    yield model_finding(settings)
    yield from download_findings()
    if request.network:
        yield network_finding(request.reach)
