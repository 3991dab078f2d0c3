"""A child process is given so long for each piece of work, and no longer."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from llmrun.chat.template import TemplateRenderer
from llmrun.chat.watchdog import Watchdog

PLENTY_S = 600.0


@pytest.fixture
def echo() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sends back what it gets, until it gets nothing more."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def answer(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"text\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_work_done_in_time_is_let_go_however_often(echo: subprocess.Popen[bytes]) -> None:
    watchdog = Watchdog(echo)
    for _ in range(3):
        with watchdog.limit(PLENTY_S):
            assert answer(echo) == b"text\n"
    assert not watchdog.expired
    watchdog.close()
    assert echo.poll() is None


def test_work_that_takes_too_long_ends_the_process(echo: subprocess.Popen[bytes]) -> None:
    watchdog = Watchdog(echo)
    with watchdog.limit(PLENTY_S):
        answer(echo)
    assert echo.stdout is not None
    with watchdog.limit(0.01):
        assert echo.stdout.readline() == b""  # nothing was sent, so that only its end comes back
    assert watchdog.expired
    watchdog.close()


def test_a_render_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemplateRenderer("{{ messages[0].content }}", special_tokens={}) as renderer:
        assert renderer.render([{"content": "one"}]) == "one"
        monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        assert renderer.render([{"content": "two"}]) == "two"
