"""Makes records of what was measured, and keeps them: in the report, and at once in the history."""

from __future__ import annotations

import logging
import platform
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from llmrun import __version__
from llmrun.app.bench.bandwidth import ReadBandwidth
from llmrun.app.bench.machine import Watch
from llmrun.app.bench.subject import memory_of, traffic_of
from llmrun.app.loading import Opened
from llmrun.app.settings import SettingSources
from llmrun.bench.disturbance import SPREAD_SHARE
from llmrun.bench.plan import BenchPlan
from llmrun.bench.records import record_document
from llmrun.bench.stats import spread_of
from llmrun.bench.verdict import verdicts
from llmrun.config.dirs import user_data_dir
from llmrun.config.schema import BY_NAME
from llmrun.engine.api import EngineFactory
from llmrun.errors import EngineFailure, LlmrunError, WriteFailure
from llmrun.events import Notice
from llmrun.gguf.hparams import MemoryFacts
from llmrun.journal.bench import log_bench
from llmrun.metrics.clock import Clock
from llmrun.reports.bench import BenchReport, BenchTest, Measured, Quiet, Record, RequestTimes, Subject

log = logging.getLogger("llmrun.bench")

_BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure. `prompt`: whole requests on it as well. `name`: what the history calls the run;
    `arguments`: the command line, kept with every record."""

    plan: BenchPlan
    sources: SettingSources
    prompt: str | None = None
    name: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruments:
    """What measures, so that tests can bring their own. `bandwidth` by the number of threads."""

    clock: Clock
    factory: EngineFactory | None = None
    watch: Callable[[], Watch] = Watch
    bandwidth: Callable[[int], ReadBandwidth | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class BenchModel:
    """An open model with what its records share. `bandwidth`: bytes a second of the machine, if known."""

    opened: Opened
    subject: Subject
    facts: MemoryFacts
    bandwidth: float | None


class Keeper:
    """The records of one run."""

    def __init__(self, request: BenchRequest, tools: Instruments) -> None:
        self._request, self._tools = request, tools
        self._run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self._bandwidths: dict[int, ReadBandwidth | None] = {}
        self.records: list[Record] = []

    def bandwidth(self, n_threads: int) -> float | None:
        """Of the machine, asked for once; a benchmark does without it rather than fail."""
        if n_threads not in self._bandwidths:
            try:
                self._bandwidths[n_threads] = self._tools.bandwidth(n_threads)
            except EngineFailure as error:
                log.info("no bandwidth: %s", error.message)
                self._bandwidths[n_threads] = None
        found = self._bandwidths[n_threads]
        return None if found is None else found.bytes_per_s

    def keep(
        self,
        model: BenchModel,
        test: BenchTest,
        samples_ns: Sequence[int],
        watch: Watch,
        flags: tuple[str, ...] = (),
        request: RequestTimes | None = None,
    ) -> Generator[Measured | Notice, None, None]:
        """Make the record of a test, pass it on, write it into the history."""
        found = watch.lap()
        spread = spread_of([_BILLION * test.n_tokens / taken for taken in samples_ns])
        wide: tuple[str, ...] = ("spread",) if spread.relative > SPREAD_SHARE else ()
        rate = request.generation_rate if request else spread.mean if test.kind == "tg" else None
        record = Record(
            model.subject,
            test,
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            tuple(samples_ns),
            spread,
            memory_of(model.opened.engine.facts),
            Quiet(found.others_cores, found.steal_share, found.run_queue_share, found.throttled),
            (*found.flags, *wide, *flags),
            traffic_of(model.facts, model.opened, test, rate, model.bandwidth),
            request,
        )
        self.records.append(record)
        yield Measured(record)
        yield from self._log(model, record)

    def _log(self, model: BenchModel, record: Record) -> Generator[Notice, None, None]:
        request, settings = self._request, model.opened.settings_json
        folder = user_data_dir(request.sources.env)
        try:
            log_bench(
                folder, self._run_id, request.name, provenance(request, settings), record_document(record)
            )
        except WriteFailure as error:
            yield Notice("warning", f"the history was not written: {error.message}")

    def report(self, *, complete: bool = True, failure: LlmrunError | None = None) -> BenchReport:
        """All of it; `failure` is what ended the run early."""
        known = next((b for b in self._bandwidths.values() if b is not None), None)
        return BenchReport(
            self._run_id,
            tuple(self.records),
            complete,
            verdicts(self.records),
            None if known is None else known.bytes_per_s,
            "" if known is None else known.measured_at,
            known is not None and known.busy,
            failure,
        )


def provenance(request: BenchRequest, settings: Mapping[str, object] | None = None) -> dict[str, object]:
    """With what a run was made, beside what its records say themselves."""
    found: dict[str, object] = {
        "version": __version__,
        "arguments": list(request.arguments),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    if settings is not None:
        own_words = {name for name, setting in BY_NAME.items() if setting.is_free_text}
        found["settings"] = {name: value for name, value in settings.items() if name not in own_words}
    return found
