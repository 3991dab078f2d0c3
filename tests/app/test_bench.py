"""Benchmarks on an engine whose time a test sets: what is timed, counted, kept and marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.bench.bandwidth import ReadBandwidth
from llmrun.app.bench.keep import BenchRequest, Instruments
from llmrun.app.bench.machine import Watch
from llmrun.app.bench.run import BenchEvent, bench
from llmrun.app.worker import Stop
from llmrun.bench.disturbance import Usage
from llmrun.bench.plan import BenchPlan
from llmrun.engine.api import ContextParams, Engine, ModelParams
from llmrun.engine.scripted import Script, ScriptedEngine, scripted_factory
from llmrun.errors import (
    DoesNotFit,
    EngineFailure,
    Interrupted,
    LlmrunError,
    ModelNotFound,
    NotAModel,
    UsageError,
)
from llmrun.events import Notice
from llmrun.journal.bench import bench_history, bench_runs
from llmrun.reports.bench import BenchFinished, BenchProgress, BenchReport, Measured, Record

from tests.support.requests import Desk, SetClock

BATCH_S, STEP_S = 0.5, 0.125
N_BATCH = 32


@dataclass
class Machine:
    """A model whose batches and steps take fixed times, on a machine of the test's."""

    desk: Desk
    replies: Sequence[Sequence[str]] = (["a"] * 40,)
    at_tick: Callable[[str, int], None] = lambda _event, _count: None
    others_s: float = 0.0
    bytes_per_s: float | None = None
    clock: SetClock = field(default_factory=SetClock)
    stop: Stop = field(default_factory=Stop)
    engines: list[ScriptedEngine] = field(default_factory=list)
    events: list[BenchEvent] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    slow_step_s: dict[int, float] = field(default_factory=dict)

    def _tick(self, event: str) -> None:
        self.ticks.append(event)
        self.clock.now_s += BATCH_S if event == "prefill" else STEP_S
        self.clock.now_s += self.slow_step_s.get(len(self.ticks), 0.0)
        self.at_tick(event, len(self.ticks))

    def _open(self, model: ModelParams, context: ContextParams, *rest: Any) -> Engine:
        engine = scripted_factory(Script(self.replies), self._tick)(model, context, *rest)
        self.engines.append(engine)
        return engine

    def _usage(self) -> Usage:
        now_s = self.clock.now_s
        return Usage(now_s, 2, all_s=now_s * self.others_s, waiting_s=0.0)

    def _bandwidth(self, n_threads: int) -> ReadBandwidth | None:
        return self.bytes_per_s and ReadBandwidth(self.bytes_per_s, n_threads, "2030", 0.0)  # type: ignore[return-value]

    def run(
        self, *, model: Path | None = None, prompt: str | None = None, name: str = "", **plan: Any
    ) -> BenchReport:
        """The report of a plan; two repetitions and small counts unless it says otherwise."""
        path = str(model or self.desk.model)
        counts: dict[str, Any] = {
            "n_prompt": (64,),
            "n_gen": (8,),
            "reps": 2,
            "varying": {"n_batch": (str(N_BATCH),)},
        } | plan
        request = BenchRequest(
            BenchPlan(models=(path,), **counts), self.desk.sources(), prompt, name, ("bench", "m")
        )
        tools = Instruments(self.clock, self._open, lambda: Watch(self._usage), self._bandwidth)
        for event in bench(request, tools, self.stop):
            self.events.append(event)
        last = self.events[-1]
        assert isinstance(last, BenchFinished)
        return last.report

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def machine(desk: Desk) -> Machine:
    return Machine(desk)


def only(report: BenchReport) -> Record:
    (record,) = report.records
    return record


def history(desk: Desk) -> Path:
    return Path(desk.env["LLMRUN_DATA_DIR"])


def test_a_prompt_is_timed_over_all_its_batches(machine: Machine) -> None:
    found = only(machine.run(n_gen=(0,), n_prompt=(66,)))
    assert found.samples_ns == (1_500_000_000,) * 2
    assert found.spread.mean == pytest.approx(66 / 1.5)
    assert found.flags == ()


def test_output_is_timed_token_by_token(machine: Machine) -> None:
    found = only(machine.run(n_prompt=(0,)))
    assert found.samples_ns == (1_000_000_000,) * 2
    assert found.spread.mean == 8.0


def test_a_pair_is_timed_as_one(machine: Machine) -> None:
    found = only(machine.run(n_prompt=(0,), n_gen=(0,), pairs=((32, 8),)))
    assert found.samples_ns == (1_500_000_000,) * 2
    assert found.spread.mean == pytest.approx(40 / 1.5)


def test_every_repetition_evaluates_everything(machine: Machine) -> None:
    machine.run(n_gen=(0,), reps=3)
    assert machine.ticks == ["prefill"] * 2 * 4
    assert len(machine.engines[0].held(0)) == 64


def test_one_round_warms_up_unless_it_is_not_wanted(machine: Machine) -> None:
    machine.run(n_prompt=(0,), reps=3)
    assert len(machine.ticks) == 1 + 3 * 8
    machine.ticks.clear()
    machine.run(n_prompt=(0,), reps=3, warmup=False)
    assert len(machine.ticks) == 3 * 8


def test_depth_is_filled_once_and_not_timed(machine: Machine) -> None:
    report = machine.run(n_depth=(96,))
    assert [record.samples_ns for record in report.records] == [(1_000_000_000,) * 2] * 2
    assert machine.ticks.count("prefill") == 3 + 3 * 2
    assert len(machine.engines[0].held(0)) == 96 + 8


def test_several_sequences_share_a_step(machine: Machine) -> None:
    report = machine.run(n_parallel=(1, 4), n_prompt=(0,))
    alone, four = report.records
    assert (alone.spread.mean, four.spread.mean, four.per_request_rate) == (8.0, 32.0, 8.0)
    assert [len(machine.engines[1].held(seq)) for seq in range(4)] == [8] * 4


def test_the_context_is_as_large_as_the_tests_need(machine: Machine) -> None:
    machine.run(n_prompt=(300,), n_depth=(0, 100), n_parallel=(1, 2))
    assert [engine.facts.n_ctx for engine in machine.engines] == [512, 1024]


def test_models_and_settings_each_get_a_context(machine: Machine) -> None:
    report = machine.run(n_gen=(0,), varying={"n_threads": ("1", "2"), "n_batch": ("32",)})
    assert [record.subject.n_threads for record in report.records] == [1, 2]
    assert [engine.facts.n_threads_batch for engine in machine.engines] == [1, 2]


def test_progress_tells_the_time_left_once_it_is_known(machine: Machine) -> None:
    machine.run(reps=3)
    left = [event.left_s for event in machine.events if isinstance(event, BenchProgress)]
    assert left[0] is None
    assert left[-1] == pytest.approx(1.0)


def test_a_record_says_what_it_was_measured_on(machine: Machine) -> None:
    subject = only(machine.run(n_gen=(0,), varying={"n_gpu_layers": ("99",), "type_k": ("q8_0",)})).subject
    assert (subject.build, subject.cpu_info, subject.model_type) == (
        "scripted",
        "scripted CPU",
        "scripted 1M F32",
    )
    assert (subject.n_gpu_layers, subject.n_gpu_layers_offloaded, subject.type_k) == (99, 0, "q8_0")
    assert subject.model_filename == str(machine.desk.model)
    assert len(subject.model_digest) == 64


def test_bandwidth_is_what_a_step_reads_times_the_rate(machine: Machine) -> None:
    machine.bytes_per_s = 1e6
    report = machine.run()
    prompt, output = report.records
    assert prompt.traffic is None
    assert output.traffic is not None
    assert output.traffic.bytes_per_s == pytest.approx(output.traffic.bytes_per_step * 8)
    assert output.traffic.fraction == pytest.approx(output.traffic.bytes_per_s / 1e6)
    assert output.traffic.ceiling_rate == pytest.approx(1e6 / output.traffic.bytes_per_step)
    assert (report.bandwidth_bytes_per_s, report.bandwidth_busy) == (1e6, False)


def test_a_bandwidth_measured_on_a_busy_machine_is_marked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "_bandwidth", lambda _self, n: ReadBandwidth(1e6, n, "2030", 1.0))
    assert machine.run().bandwidth_busy


def test_an_unknown_bandwidth_is_no_failure(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EngineFailure("no")

    monkeypatch.setattr(Machine, "_bandwidth", fail)
    found = machine.run().records[1]
    assert found.traffic is not None
    assert found.traffic.fraction is None


def test_a_busy_machine_marks_the_record(machine: Machine) -> None:
    machine.others_s = 0.5
    found = only(machine.run(n_gen=(0,)))
    assert found.flags == ("busy",)
    assert found.quiet.others_cores == pytest.approx(0.5, abs=0.02)


def test_a_wide_spread_marks_the_record(machine: Machine) -> None:
    machine.slow_step_s = {12: 3.0}
    assert only(machine.run(n_prompt=(0,))).flags == ("spread",)


def test_each_test_is_in_the_history_when_it_is_complete(machine: Machine) -> None:
    seen: list[int] = []

    def look(event: str, _count: int) -> None:
        if event == "token":
            seen.append(len(bench_runs(history(machine.desk))))

    machine.at_tick = look
    report = machine.run(name="base")
    assert set(seen) == {1}
    (run,) = bench_runs(history(machine.desk))
    assert (run.run_id, run.name) == (report.run_id, "base")
    assert [record["test"] for record in run.records] == ["pp64", "tg8"]
    line = bench_history(history(machine.desk)).read_text().splitlines()[0]
    assert '"arguments":["bench","m"]' in line
    assert '"n_threads"' in line


def test_a_history_that_cannot_be_written_is_a_warning(machine: Machine) -> None:
    history(machine.desk).write_text("a file")
    assert len(machine.run().records) == 2
    assert any("history" in notice for notice in machine.notices)


def test_an_interrupt_keeps_what_is_complete(machine: Machine) -> None:
    """In the third of five repetitions of the second test."""

    def press(event: str, count: int) -> None:
        if machine.ticks.count("token") == 1 + 2 * 8 + 3:
            machine.stop.press()

    machine.at_tick = press
    report = machine.run(reps=5)
    assert not report.complete
    whole, part = report.records
    assert (len(whole.samples_ns), whole.flags) == (5, ())
    assert (len(part.samples_ns), part.flags) == (2, ("interrupted",))
    assert [record["test"] for record in bench_runs(history(machine.desk))[0].records] == ["pp64", "tg8"]


def test_an_interrupt_before_anything_is_measured(machine: Machine) -> None:
    machine.at_tick = lambda _event, _count: machine.stop.press()
    with pytest.raises(Interrupted):
        machine.run()
    assert not bench_history(history(machine.desk)).exists()


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ({"varying": {"type_k": ("f17",)}}, UsageError),
        ({"varying": {"n_gpu_layers": ("many",)}}, UsageError),
        ({"varying": {"flash_attn": ("maybe",)}}, UsageError),
        ({"model": Path("/no/such.gguf")}, ModelNotFound),
        ({"model": Path(__file__)}, NotAModel),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    machine: Machine, plan: dict[str, Any], error: type[LlmrunError]
) -> None:
    with pytest.raises(error):
        machine.run(**plan)
    assert not machine.engines


def test_a_notice_comes_once_however_often_the_model_is_opened(machine: Machine) -> None:
    machine.run(n_gen=(0,), n_parallel=(1, 2), varying={"n_threads": ("500",)})
    assert len(machine.engines) == 2
    assert sum("threads" in notice for notice in machine.notices) == 1


def test_whole_requests_cold_and_cached(machine: Machine) -> None:
    report = machine.run(prompt="x" * 60, n_prompt=(0,), n_gen=(8,), reps=3)
    _, cold, cached = report.records
    assert (cold.test.name, cached.test.name) == ("run 60+8", "run 60+8 cached")
    assert cold.request is not None
    assert cached.request is not None
    assert (cold.request.evaluated, cold.request.cached) == (60, 0)
    assert (cached.request.evaluated, cached.request.cached) == (1, 59)
    assert cold.request.prefill_s == pytest.approx(2 * BATCH_S)
    assert cold.request.ttft_s == pytest.approx(2 * BATCH_S + STEP_S)
    assert cold.request.total_s == pytest.approx(2 * BATCH_S + 8 * STEP_S)
    assert cold.request.generation_rate == pytest.approx(8.0)
    assert cold.request.itl is not None
    assert cold.request.itl.mean_s == pytest.approx(STEP_S)
    assert cold.samples_ns == (2_000_000_000,) * 3
    assert cold.spread.mean == pytest.approx(68 / 2.0)
    assert cached.spread.mean == pytest.approx(9 / 1.5)


def test_requests_alone_are_a_benchmark(machine: Machine) -> None:
    report = machine.run(prompt="x" * 70, n_prompt=(0,), n_gen=(0,))
    assert [record.test.kind for record in report.records] == ["e2e"] * 2
    assert report.verdicts


def test_the_time_left_includes_requests(machine: Machine) -> None:
    machine.run(prompt="x" * 63, n_prompt=(64,), n_gen=(8,), reps=2)
    shown = [event for event in machine.events if isinstance(event, BenchProgress)]
    assert {event.total for event in shown} == {4}
    left = {event.label: event.left_s for event in shown}
    cold, cached = 2 * BATCH_S + 8 * STEP_S, BATCH_S / 32 + 8 * STEP_S
    assert left["run 63+8, 2 of 3"] == pytest.approx(2 * cold + 3 * cached, rel=0.05)
    assert left["run 63+8 cached, 3 of 3"] == pytest.approx(cached, rel=0.05)


def test_a_failure_keeps_what_was_measured_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Machine._open

    def full(self: Machine, model: ModelParams, context: ContextParams, *rest: Any) -> Engine:
        if context.n_seq > 1:
            raise DoesNotFit("no room", "use a smaller -c")
        return opened(self, model, context, *rest)

    monkeypatch.setattr(Machine, "_open", full)
    report = machine.run(n_gen=(0,), n_parallel=(1, 4))
    assert (len(report.records), report.complete) == (1, False)
    assert isinstance(report.failure, DoesNotFit)
    assert "-c" not in report.failure.hint
    with pytest.raises(DoesNotFit):
        machine.run(n_gen=(0,), n_parallel=(4,))


def test_the_machine_cools_down_before_each_test(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[float | None, int]] = []

    def wait(timeout: float | None = None) -> bool:
        waits.append((timeout, len(machine.ticks)))
        return len(waits) == 4

    monkeypatch.setattr(machine.stop.cancelled, "wait", wait)
    report = machine.run(prompt="x" * 8, n_prompt=(64,), n_gen=(8,), delay_s=7.0)
    prompt, output = 2 * 3, 1 + 2 * 8
    request = 3 * (1 + 8)
    assert waits == [(7.0, n) for n in (0, prompt, prompt + output, prompt + output + request)]
    assert (len(report.records), report.complete) == (3, False)


def test_requests_take_the_length_of_the_output_tests(machine: Machine) -> None:
    report = machine.run(prompt="x", n_prompt=(0,), n_gen=(4, 8))
    assert [r.test.n_gen for r in report.records if r.test.kind == "e2e"] == [4, 4, 8, 8]


def test_an_interrupted_request_keeps_the_repetitions_before(machine: Machine) -> None:
    def press(event: str, _count: int) -> None:
        if event == "token" and machine.ticks.count("token") == 8 * 3 + 2:
            machine.stop.press()

    machine.at_tick = press
    report = machine.run(prompt="x", n_prompt=(1,), n_gen=(8,), reps=4)
    assert not report.complete


def test_a_record_of_each_test_is_passed_on_as_it_comes(machine: Machine) -> None:
    report = machine.run()
    assert [e.record for e in machine.events if isinstance(e, Measured)] == list(report.records)
