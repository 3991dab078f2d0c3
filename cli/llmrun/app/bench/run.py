"""`llmrun bench`: open each model with each combination of settings, measure its tests, keep every record.

A record is in the history as soon as its test is complete. An interrupt ends the run with what there is; of
the test under way the finished repetitions are kept, marked. The model is opened anew also where only the
context differs: what fits is planned with the memory that is free before the weights are in it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from llmrun.app.bench.keep import BenchModel, BenchRequest, Instruments, Keeper
from llmrun.app.bench.measure import RateRun
from llmrun.app.bench.peak_memory import reset_peak
from llmrun.app.bench.requests import RequestRun, request_times
from llmrun.app.bench.subject import header_digest, subject_of
from llmrun.app.loading import OpenRequest, open_model
from llmrun.app.worker import Stop
from llmrun.bench.left import TimeLeft
from llmrun.bench.plan import BenchPlan, Settings
from llmrun.errors import DoesNotFit, Interrupted, LlmrunError
from llmrun.events import Event, GenerationStats, LoadProgress, Notice
from llmrun.gguf.check import check_runnable
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import padded
from llmrun.reports.bench import (
    BenchFinished,
    BenchProgress,
    BenchTest,
    CacheState,
    Measured,
)
from llmrun.store.resolve import resolve

BenchEvent = Event | BenchProgress | Measured | BenchFinished
_ANSWER = 128
_CHARACTERS_A_TOKEN = 4
_BILLION = 1_000_000_000


def bench(request: BenchRequest, tools: Instruments, stop: Stop) -> Iterator[BenchEvent]:
    """Measure everything, a model at a time; ends with `BenchFinished`, also where it was interrupted.

    Raises:
        ModelNotFound, NotAModel, UsageError, DoesNotFit, EngineFailure: a model cannot be opened as asked.
        Interrupted: stopped before anything was measured.
    """
    for name in request.plan.models:  # what cannot be a model is refused before hours are spent on others
        path = resolve(name).path
        check_runnable(read_header(path), name=path.name)
    for settings in request.plan.settings():
        flags = {**request.sources.flags, **_with_batch_threads(settings)}
        replace(request.sources, flags=flags).resolve()
    return _Run(request, tools, stop).events()


class _Run:
    def __init__(self, request: BenchRequest, tools: Instruments, stop: Stop) -> None:
        self.request, self.tools, self.stop = request, tools, stop
        self._keeper = Keeper(request, tools)
        self._notices: set[str] = set()

    def events(self) -> Iterator[BenchEvent]:
        complete, failure = True, None
        try:
            for event in self._groups():
                if self._wanted(event):
                    yield event
        except LlmrunError as error:
            error = _in_terms_of_tests(error)
            if not self._keeper.records:
                raise error from None
            complete, failure = False, None if isinstance(error, Interrupted) else error
        yield BenchFinished(self._keeper.report(complete=complete, failure=failure))

    def _wanted(self, event: BenchEvent) -> bool:
        """Each notice once, however many times a model is opened."""
        if isinstance(event, Notice):
            new = event.text not in self._notices
            self._notices.add(event.text)
            return new
        return isinstance(event, LoadProgress | BenchProgress | Measured)

    def _groups(self) -> Generator[BenchEvent, None, None]:
        plan = self.request.plan
        groups = plan.groups()
        tests = [test for group in groups for test in group.tests]
        progress = _Progress(plan, [*tests, *self._planned_requests()])
        for group in groups:
            flags = {
                **_with_batch_threads(group.settings),
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
                yield from self._requests(name, _with_batch_threads(settings), self.request.prompt, progress)

    def _planned_requests(self) -> Iterator[BenchTest]:
        """Whole requests as far as they are known beforehand; the length of the prompt is a guess."""
        plan, prompt = self.request.plan, self.request.prompt
        if prompt is not None:
            guess = 1 + len(prompt) // _CHARACTERS_A_TOKEN
            for _, _, count in product(plan.models, plan.settings(), _answers(plan)):
                yield BenchTest("e2e", guess, count, cache="cold")
                yield BenchTest("e2e", guess, count, cache="cached", n_cached=guess - 1)

    def _open(
        self, name: str, flags: Mapping[str, object], *, template: bool
    ) -> Generator[BenchEvent, None, BenchModel]:
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
            bandwidth = self._keeper.bandwidth(subject.n_threads)
            return BenchModel(opened, subject, memory_facts(headers[0], headers[1:]), bandwidth)
        except BaseException:
            opened.close()
            raise

    def _measure(
        self, model: BenchModel, test: BenchTest, progress: _Progress
    ) -> Generator[BenchEvent, None, None]:
        """All rounds of one test. An interrupt keeps the repetitions that are complete."""
        plan, run = self.request.plan, RateRun(model.opened.engine, test, self.tools.clock, self.stop)
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
                yield from self._keeper.keep(model, test, run.samples_ns, watch, ("interrupted",))
            raise
        progress.done += 1
        yield from self._keeper.keep(model, test, run.samples_ns, watch)

    def _requests(
        self, name: str, settings: Mapping[str, str], prompt: str, progress: _Progress
    ) -> Generator[BenchEvent, None, None]:
        """Whole requests, cold and cached, for each number of output tokens."""
        flags: dict[str, object] = {**settings, "n_parallel": "1"}
        model = yield from self._open(name, flags, template=True)
        try:
            for count in _answers(self.request.plan):
                sources = self.request.sources
                for cache in ("cold", "cached"):
                    own = {"max_tokens": str(count), "prefix_cache": cache == "cached"}
                    opened = model.opened.with_settings(
                        replace(sources, flags={**sources.flags, **flags, **own})
                    )
                    run = RequestRun(opened, self.tools.clock, prompt, cold=cache == "cold")
                    yield from self._measure_requests(replace(model, opened=opened), run, cache, progress)
        finally:
            model.opened.close()

    def _measure_requests(
        self, model: BenchModel, run: RequestRun, cache: CacheState, progress: _Progress
    ) -> Generator[BenchEvent, None, None]:
        plan = self.request.plan
        reset_peak()
        if plan.delay_s and self.stop.cancelled.wait(plan.delay_s):
            raise Interrupted("interrupted")
        unmeasured = int(plan.warmup or cache == "cached")
        flags: tuple[str, ...] = ()
        watch = self.tools.watch()
        try:
            for index in range(unmeasured + plan.reps):
                yield progress.at(progress.test, index)
                yield from run.repeat()
                progress.learn_request(run.stats[-1])
                if index == unmeasured - 1:
                    run.stats.clear()
                    watch = self.tools.watch()
        except Interrupted:
            flags = ("interrupted",)
        progress.done += 1
        if run.stats and any(stats.ttft_s is not None for stats in run.stats):
            times = request_times(run.stats)
            made = run.stats[-1].generated_tokens
            last = run.stats[-1]
            test = BenchTest("e2e", last.prompt_tokens, made, cache=cache, n_cached=last.cached_tokens)
            samples = [max(1, round(stats.total_s * _BILLION)) for stats in run.stats]
            yield from self._keeper.keep(model, test, samples, watch, flags, times)
        if flags:
            raise Interrupted("interrupted")


def _answers(plan: BenchPlan) -> list[int]:
    """Lengths of the answers of whole requests."""
    return [count for count in plan.n_gen if count] or [_ANSWER]


def _in_terms_of_tests(error: LlmrunError) -> LlmrunError:
    """Here the context follows from the tests: no flag sets it."""
    if isinstance(error, DoesNotFit):
        return DoesNotFit(error.message, "take smaller -p, -n, -d or -np, or a smaller model")
    return error


def _with_batch_threads(settings: Settings) -> dict[str, str]:
    """A number of threads counts for prompts and output alike, as in llama-bench."""
    found = dict(settings)
    return {**found, "n_threads_batch": found["n_threads"]} if "n_threads" in found else found


class _Progress:
    """Where in the run it is."""

    def __init__(self, plan: BenchPlan, tests: Sequence[BenchTest]) -> None:
        self._tests = tests
        self._left = TimeLeft(plan.reps, warmup=plan.warmup, delay_s=plan.delay_s)
        self.done = 0

    @property
    def test(self) -> BenchTest:
        """The one under way."""
        return self._tests[self.done]

    def learn(self, test: BenchTest, taken_s: float) -> None:
        self._left.learn(test, taken_s)

    def learn_request(self, stats: GenerationStats) -> None:
        """A request was answered: how long the prompt is in tokens, and both rates."""
        prompt = stats.prompt_tokens
        self._tests = [
            replace(test, n_prompt=prompt, n_cached=prompt - 1 if test.cache == "cached" else 0)
            if test.kind == "e2e"
            else test
            for test in self._tests
        ]
        if not stats.cached_tokens:
            self._left.learn(BenchTest("pp", stats.prefill_tokens, 0), stats.prefill_s)
        if stats.itl is not None:
            self._left.learn(BenchTest("tg", 0, 1), stats.itl.mean_s)

    def at(self, test: BenchTest, rounds_done: int) -> BenchProgress:
        left_s = self._left.seconds(self._tests[self.done :], rounds_done)
        label = f"{test.name}, {rounds_done + 1} of {self._left.rounds(test)}"
        return BenchProgress(self.done, len(self._tests), label, left_s)
