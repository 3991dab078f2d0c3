"""Fixtures of these tests."""

from pathlib import Path

import pytest

from tests.support.cli import cli  # noqa: F401
from tests.support.prefixes import caching  # noqa: F401
from tests.support.pulling import online  # noqa: F401
from tests.support.puppet import write_puppet


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that says "a short answer" and ends."""
    return write_puppet(tmp_path / "short.gguf", ["a ", "short ", "answer"]).path
