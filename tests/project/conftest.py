"""Fixtures of these tests."""

from tests.support.cli import cli  # noqa: F401
from tests.support.pulling import online  # noqa: F401
