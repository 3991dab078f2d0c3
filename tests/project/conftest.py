"""Fixtures of these tests."""

from tests.support.cli import cli  # noqa: F401
