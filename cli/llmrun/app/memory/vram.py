"""The memory a model will take: `llmrun vram`.

The formula needs the model's header alone, or nothing but a few numbers; a child process tells the devices
meanwhile. It is started before the rooms that compute are even imported, as it takes as long as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrun.app.memory.devices import DeviceProbe
from llmrun.app.plan import model_params
from llmrun.app.settings import SettingSources
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES
from llmrun.reports.vram import VramReport


@dataclass(frozen=True, slots=True)
class Numbers:
    """A model in plain numbers; `quant` by its usual name."""

    layers: int
    kv_heads: int
    head_dim: int
    params: float
    quant: str


@dataclass(frozen=True, slots=True)
class VramRequest:
    """What to estimate: a model by name, or by `numbers`.

    `named`: free bytes of devices, present or not, by name. `exact`: let the engine compute. `verify`: load
    the model as well and compare. `explain`: add the steps to the size of the cache.
    """

    sources: SettingSources
    model: str | None = None
    numbers: Numbers | None = None
    named: tuple[tuple[str, int], ...] = ()
    reserve_bytes: int = DEFAULT_RESERVE_BYTES
    exact: bool = False
    verify: bool = False
    explain: bool = False

    @property
    def cache_dir(self) -> Path:
        """Where headers of models on the Hub are kept."""
        from llmrun.config.dirs import user_cache_dir

        return user_cache_dir(self.sources.env)


def vram_report(
    request: VramRequest, *, start_probe: Callable[[Sequence[str]], DeviceProbe] = DeviceProbe
) -> VramReport:
    """The memory that `request` will take on the devices there are.

    Of a model that is not on this machine the header alone is read from the Hub.

    Raises:
        UsageError: no model, a setting, a device or a combination that cannot be.
        ModelNotFound, NotAModel: there is no such model, or the file cannot be one.
        NetworkFailure: it is not here, and the Hub cannot be asked.
        EngineFailure, DoesNotFit, WriteFailure: the engine was asked and failed.
    """
    settings = request.sources.resolve()
    probe = start_probe(model_params(settings, "").rpc)
    from llmrun.app.memory.vram_estimate import report_of

    return report_of(request, settings, probe)
