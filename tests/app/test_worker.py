"""Work beside the main thread: events and errors arrive, and stopping reaches the engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from llmrun.app import worker
from llmrun.app.worker import SigintStops, Stop, in_worker
from llmrun.engine.api import ContextParams
from llmrun.engine.scripted import Script, ScriptedEngine
from llmrun.errors import EngineFailure, Interrupted
from llmrun.events import Accepted, Event

from tests.support.waiting import TIMEOUT_S


def events(count: int) -> Iterator[Event]:
    for number in range(count):
        yield Accepted(float(number))


def test_events_arrive_in_order() -> None:
    assert list(in_worker(events(5), Stop())) == [Accepted(float(n)) for n in range(5)]


def test_an_error_is_raised_where_the_events_are_read() -> None:
    def failing() -> Iterator[Event]:
        yield Accepted(0.0)
        raise EngineFailure("broken")

    received: list[Event] = []
    with pytest.raises(EngineFailure, match="broken"):
        received.extend(in_worker(failing(), Stop()))


def test_closing_early_stops_the_work_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_S", TIMEOUT_S)
    stop, ended = Stop(), threading.Event()

    def endless() -> Iterator[Event]:
        while not stop.cancelled.is_set():
            yield Accepted(0.0)
        ended.set()

    with closing(in_worker(endless(), stop)) as received:
        next(received)
    assert ended.is_set()


def test_a_press_before_the_engine_is_there_reaches_it() -> None:
    stop, engine = Stop(), ScriptedEngine(Script([["a"]]), ContextParams())
    stop.press()
    assert stop.loading
    stop.attach(engine)
    assert engine._stopped.is_set()
    stop.release()
    assert not engine._stopped.is_set()


def test_ctrl_c_while_loading_raises() -> None:
    with pytest.raises(Interrupted), SigintStops(Stop()):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_stops_a_request_and_an_impatient_second_one_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "PATIENCE_S", TIMEOUT_S)
    stop = Stop()
    stop.attach(ScriptedEngine(Script([["a"]]), ContextParams()))
    before = signal.getsignal(signal.SIGINT)
    with SigintStops(stop):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.cancelled.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_the_program_when_the_request_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_S", -1.0)
    stop = Stop()
    stop.attach(ScriptedEngine(Script([["a"]]), ContextParams()))
    with pytest.raises(Interrupted), SigintStops(stop):
        signal.raise_signal(signal.SIGINT)
