"""Questions to the Hub that take long: the wait is told, bounded, and left at will."""

from __future__ import annotations

import threading

import pytest

from llmrun.app.library import asking
from llmrun.app.library.asking import answer, asked
from llmrun.errors import ModelNotFound, NetworkFailure


@pytest.fixture(autouse=True)
def _hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@hub.invalid:81/path")
    monkeypatch.setattr(asking, "_FELT_S", 0.01)
    monkeypatch.setattr(asking, "_TELL_EVERY_S", 0.01)


def test_the_answer_is_the_questions() -> None:
    assert answer(asked(lambda: 7)) == 7


def test_what_the_question_raises_is_raised() -> None:
    def refuse() -> None:
        raise ModelNotFound("no such thing", "look elsewhere")

    with pytest.raises(ModelNotFound, match="no such thing"):
        answer(asked(refuse))


def test_a_wait_is_told_with_the_host_until_the_answer_comes() -> None:
    come = threading.Event()
    going = asked(come.wait)
    told = [next(going) for _ in range(3)]
    assert {event.host for event in told} == {"hub.invalid:81"}
    assert [event.waited_s for event in told] == sorted(event.waited_s for event in told)
    come.set()
    assert answer(going) is True


def test_a_wait_has_an_end_where_it_is_bounded() -> None:
    come = threading.Event()
    with pytest.raises(NetworkFailure, match=r"hub\.invalid:81 has not answered"):
        answer(asked(come.wait, 0.05))
    come.set()


def test_an_address_that_is_none_is_told_however_late_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://[::1")
    come = threading.Event()
    with pytest.raises(NetworkFailure, match="HF_ENDPOINT"):
        answer(asked(come.wait))
    come.set()


def test_whoever_leaves_waits_no_longer() -> None:
    come = threading.Event()
    going = asked(come.wait)
    next(going)
    going.close()  # would hang if the question were waited for
    come.set()
