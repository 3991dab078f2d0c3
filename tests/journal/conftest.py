"""A store of sessions on a clock that a test can read, and writers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmrun.journal.sessions import SessionStore

CHILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from llmrun.journal.sessions import SessionStore
store = SessionStore(Path(sys.argv[1]), lambda: datetime.now(UTC))
"""


def ticking() -> Callable[[], datetime]:
    """A clock that moves one second each time it is read."""
    times: Iterator[datetime] = (
        datetime(2025, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=at) for at in range(10**9)
    )
    return lambda: next(times)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    """An empty store; its files are in `data/sessions` under tmp_path."""
    return SessionStore(tmp_path / "data", ticking())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `store` keeps its files."""
    return tmp_path / "data" / "sessions"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code that has a `store` on the same folder; leftovers are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CHILD + code, str(tmp_path / "data"), *map(str, args)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
