"""Fixtures of these tests."""

from tests.support.cli import cli  # noqa: F401
from tests.support.prefixes import caching  # noqa: F401
from tests.support.pulling import online  # noqa: F401
from tests.support.requests import chat_puppet, desk, plain_puppet  # noqa: F401
