"""The memory a model will take: `llmrun vram`.

The formula needs the model's header alone, or nothing but a few numbers; a child process tells the devices
meanwhile. It is started before the rooms that compute are even imported, as it takes as long as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from llmrun.app.memory.devices import DeviceProbe
from llmrun.app.memory.vram_request import VramRequest
from llmrun.app.plan import model_params
from llmrun.reports.download import HubAwaited
from llmrun.reports.vram import VramReport


def vram_report(
    request: VramRequest, *, start_probe: Callable[[Sequence[str]], DeviceProbe] = DeviceProbe
) -> Generator[HubAwaited, None, VramReport]:
    """The memory that `request` will take on the devices there are.

    Of a model that is not on this machine the header alone is read from the Hub; yields while that does not
    answer.

    Raises:
        UsageError: no model, a setting, a device or a combination that cannot be.
        ModelNotFound, NotAModel: there is no such model, or the file cannot be one.
        NetworkFailure: it is not here, and the Hub cannot be asked.
        EngineFailure, DoesNotFit, WriteFailure: the engine was asked and failed.
    """
    settings = request.sources.resolve()
    probe = start_probe(model_params(settings, "").rpc)
    from llmrun.app.memory.vram_estimate import report_of

    return (yield from report_of(request, settings, probe))
