"""The program with a Hub on loopback and a Hugging Face cache of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import Cli, Ended
from tests.support.hub import LoopbackHub, loopback_hub


@dataclass(frozen=True, slots=True)
class Online:
    """llmrun, its Hub, and the cache folder they fill."""

    cli: Cli
    server: LoopbackHub
    cache: Path

    def __call__(self, *arguments: str | Path, **env: str) -> Ended:
        """Run in this process."""
        return self.cli.here(*arguments, env=env or None)

    def offline(self) -> None:
        """Nobody answers any more."""
        self.server.fall_silent()

    def partial(self) -> list[Path]:
        """Files that a broken-off download left."""
        return sorted(self.cache.glob("models--*/blobs/*.incomplete"))

    def taken_bytes(self) -> int:
        """What the cache takes, without its locks."""
        return sum(path.lstat().st_size for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def online(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Online]:
    """A Hub without repositories, and nobody logged in."""
    from huggingface_hub import constants

    cache = tmp_path / "hub ü 模"
    for name in ("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"):
        monkeypatch.setattr(constants, name, str(tmp_path / name))
    shutil.rmtree(cli.cache / "headers", ignore_errors=True)
    with loopback_hub() as server:
        cli.env.update(HF_ENDPOINT=server.endpoint, HF_HUB_CACHE=str(cache), HF_HOME=str(tmp_path / "hf"))
        yield Online(cli, server, cache)
