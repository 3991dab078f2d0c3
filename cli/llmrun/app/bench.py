"""`llmrun bench`: open each model with each combination of settings, measure its tests, keep every record.

A record is in the history as soon as its test is complete. An interrupt ends the run with what there is; of
the test under way the finished repetitions are kept, marked.
"""

from __future__ import annotations

import logging
import platform
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product

from llmrun import __version__
from llmrun.app.bandwidth import ReadBandwidth
from llmrun.app.bench_measure import TestRun
from llmrun.app.bench_requests import RequestRun, request_times
from llmrun.app.bench_subject import header_digest, memory_of, subject_of, traffic_of
from llmrun.app.loading import Opened, OpenRequest, open_model
from llmrun.app.machine import Watch
from llmrun.app.peak_memory import reset_peak
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.bench.disturbance import SPREAD_SHARE
from llmrun.bench.left import TimeLeft
from llmrun.bench.plan import BenchPlan
from llmrun.bench.records import record_document
from llmrun.bench.stats import spread_of
from llmrun.bench.verdict import verdicts
from llmrun.bench_report import (
    BenchFinished,
    BenchProgress,
    BenchReport,
    CacheState,
    Measured,
    Quiet,
    Record,
    RequestTimes,
    Subject,
    TestSpec,
)
from llmrun.config.dirs import user_data_dir
from llmrun.config.schema import BY_NAME
from llmrun.engine.api import EngineFactory
from llmrun.errors import EngineFailure, Interrupted, WriteFailure
from llmrun.events import Event, LoadProgress, Notice
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.journal.bench import log_bench
from llmrun.memory.cache import padded
from llmrun.metrics.clock import Clock
from llmrun.store.resolve import resolve

log = logging.getLogger("llmrun.bench")

BenchEvent = Event | BenchProgress | Measured | BenchFinished
_ANSWER = 128
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


def bench(request: BenchRequest, tools: Instruments, stop: Stop) -> Iterator[BenchEvent]:
    """Measure everything; ends with `BenchFinished`, also where it was interrupted.

    Raises:
        ModelNotFound, NotAModel, UsageError, DoesNotFit, EngineFailure: a model cannot be opened as asked.
        Interrupted: stopped before anything was measured.
    """
    for model in request.plan.models:
        resolve(model)
    return _Run(request, tools, stop).events()


@dataclass(frozen=True, slots=True)
class _Model:
    """An open model with what its records share."""

    opened: Opened
    subject: Subject
    facts: MemoryFacts
    bandwidth: float | None


@dataclass(slots=True)
class _Run:
    request: BenchRequest
    tools: Instruments
    stop: Stop
    run_id: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
    records: list[Record] = field(default_factory=list)
    _notices: set[str] = field(default_factory=set)
    _bandwidths: dict[int, ReadBandwidth | None] = field(default_factory=dict)

    def events(self) -> Iterator[BenchEvent]:
        complete = True
        try:
            for event in self._groups():
                if self._wanted(event):
                    yield event
        except Interrupted:
            if not self.records:
                raise
            complete = False
        yield BenchFinished(self._report(complete=complete))

    def _wanted(self, event: BenchEvent) -> bool:
        """Each notice once, however many times a model is opened."""
        if isinstance(event, Notice):
            new = event.text not in self._notices
            self._notices.add(event.text)
            return new
        return isinstance(event, LoadProgress | BenchProgress | Measured)

    def _report(self, *, complete: bool) -> BenchReport:
        known = next((b for b in self._bandwidths.values() if b is not None), None)
        return BenchReport(
            self.run_id,
            tuple(self.records),
            complete,
            verdicts(self.records),
            None if known is None else known.bytes_per_s,
            "" if known is None else known.measured_at,
        )

    def _groups(self) -> Generator[BenchEvent, None, None]:
        plan = self.request.plan
        groups = plan.groups()
        progress = _Progress(plan, [test for group in groups for test in group.tests])
        for group in groups:
            flags = {
                **dict(group.settings),
                "n_ctx": str(group.n_parallel * padded(group.cells)),
                "n_parallel": str(group.n_parallel),
                "kv_unified": False,
            }
            model = yield from self._open(group.model, flags, template=False)
            try:
                for test in group.tests:
                    yield from self._measure(model, test, progress)
            finally:
                model.opened.close()
        if self.request.prompt is not None:
            for name, settings in product(plan.models, plan.settings()):
                yield from self._requests(name, dict(settings), self.request.prompt)

    def _open(
        self, name: str, flags: Mapping[str, object], *, template: bool
    ) -> Generator[BenchEvent, None, _Model]:
        sources = replace(self.request.sources, flags={**self.request.sources.flags, **flags})
        clock = self.tools.clock
        opened = yield from open_model(
            OpenRequest(name, sources, template=template),
            clock,
            self.stop,
            self.tools.factory,
            since_s=clock(),
        )
        try:
            paths = resolve(name).parts
            headers = [read_header(path) for path in paths]
            subject = subject_of(opened, header_digest(paths[0], headers[0]))
            bandwidth = self._bandwidth(subject.n_threads)
            return _Model(opened, subject, memory_facts(headers[0], headers[1:]), bandwidth)
        except BaseException:
            opened.close()
            raise

    def _bandwidth(self, n_threads: int) -> float | None:
        """Of the machine, asked for once; a benchmark does without it rather than fail."""
        if n_threads not in self._bandwidths:
            try:
                self._bandwidths[n_threads] = self.tools.bandwidth(n_threads)
            except EngineFailure as error:
                log.info("no bandwidth: %s", error.message)
                self._bandwidths[n_threads] = None
        found = self._bandwidths[n_threads]
        return None if found is None else found.bytes_per_s

    def _measure(
        self, model: _Model, test: TestSpec, progress: _Progress
    ) -> Generator[BenchEvent, None, None]:
        """All rounds of one test. An interrupt keeps the repetitions that are complete."""
        plan, run = self.request.plan, TestRun(model.opened.engine, test, self.tools.clock, self.stop)
        reset_peak()
        watch = None
        try:
            yield progress.at(test, 0)
            run.warm_up(plan.delay_s, wanted=plan.warmup)
            watch = self.tools.watch()
            for index in range(plan.reps):
                yield progress.at(test, index + plan.warmup)
                progress.learn(test, run.repeat())
        except Interrupted:
            if run.samples_ns and watch is not None:
                yield from self._keep(model, test, run.samples_ns, watch, ("interrupted",))
            raise
        progress.done += 1
        yield from self._keep(model, test, run.samples_ns, watch)

    def _requests(
        self, name: str, settings: Mapping[str, str], prompt: str
    ) -> Generator[BenchEvent, None, None]:
        """Whole requests, cold and cached, for each number of output tokens."""
        flags: dict[str, object] = {**settings, "n_parallel": "1"}
        counts = [count for count in self.request.plan.n_gen if count] or [_ANSWER]
        model = yield from self._open(name, flags, template=True)
        try:
            for count in counts:
                sources = self.request.sources
                limited = {**sources.flags, **flags, "max_tokens": str(count)}
                opened = model.opened.with_settings(replace(sources, flags=limited))
                for cache in ("cold", "cached"):
                    run = RequestRun(opened, self.tools.clock, prompt, cache=cache)
                    yield from self._measure_requests(replace(model, opened=opened), run, cache, count)
        finally:
            model.opened.close()

    def _measure_requests(
        self, model: _Model, run: RequestRun, cache: CacheState, count: int
    ) -> Generator[BenchEvent, None, None]:
        plan = self.request.plan
        reset_peak()
        rounds = plan.reps + (plan.warmup or cache == "cached")
        flags: tuple[str, ...] = ()
        watch = self.tools.watch()
        try:
            for index in range(rounds):
                label = f"{model.subject.model_ref}: request of {count} tokens, {cache}"
                yield BenchProgress(index, rounds, label, None)
                yield from run.repeat()
                if index == rounds - plan.reps - 1:
                    run.stats.clear()
                    watch = self.tools.watch()
        except Interrupted:
            flags = ("interrupted",)
        if run.stats and any(stats.ttft_s is not None for stats in run.stats):
            times = request_times(run.stats)
            made = run.stats[-1].generated_tokens
            test = TestSpec("e2e", run.stats[-1].prompt_tokens, made, cache=cache)
            samples = [max(1, round(stats.total_s * _BILLION)) for stats in run.stats]
            yield from self._keep(model, test, samples, watch, flags, times)
        if flags:
            raise Interrupted("interrupted")

    def _keep(
        self,
        model: _Model,
        test: TestSpec,
        samples_ns: Sequence[int],
        watch: Watch,
        flags: tuple[str, ...] = (),
        request: RequestTimes | None = None,
    ) -> Generator[BenchEvent, None, None]:
        """Make the record of a test, show it, write it into the history."""
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

    def _log(self, model: _Model, record: Record) -> Generator[BenchEvent, None, None]:
        request = self.request
        try:
            log_bench(
                user_data_dir(request.sources.env),
                self.run_id,
                request.name,
                provenance(request, model.opened.settings_json),
                record_document(record),
            )
        except WriteFailure as error:
            yield Notice("warning", f"the history was not written: {error.message}")


def provenance(request: BenchRequest, settings: Mapping[str, object] | None = None) -> dict[str, object]:
    """With what a run was made, beside what its records say themselves."""
    found: dict[str, object] = {
        "version": __version__,
        "arguments": list(request.arguments),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    if settings is not None:
        found["settings"] = {
            name: settings[name] for name in settings if not (name in BY_NAME and BY_NAME[name].is_free_text)
        }
    return found


class _Progress:
    """Where in the run it is."""

    def __init__(self, plan: BenchPlan, tests: Sequence[TestSpec]) -> None:
        self._tests = tests
        self._left = TimeLeft(plan.reps, warmup=plan.warmup, delay_s=plan.delay_s)
        self._rounds = plan.reps + plan.warmup
        self.done = 0

    def learn(self, test: TestSpec, taken_s: float) -> None:
        self._left.learn(test, taken_s)

    def at(self, test: TestSpec, rounds_done: int) -> BenchProgress:
        left_s = self._left.seconds(self._tests[self.done :], rounds_done)
        label = f"{test.name}, {rounds_done + 1} of {self._rounds}"
        return BenchProgress(self.done, len(self._tests), label, left_s)
