"""Models and engines, opened once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.llama import LlamaEngine
from llmrun.engine.probe import sizes

from tests.support.engines import OpenTiny, forget, open_llama
from tests.support.puppet import Puppet, byte_items, write_puppet
from tests.support.tiny import Arch, write_tiny
from tests.support.waiting import TIMEOUT_S


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where a CPU needs the self-check, its verdict goes to a folder of the tests; children get any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMRUN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for bound in ("_DEVICES_TIMEOUT_S", "_DRY_TIMEOUT_S"):
            patch.setattr(sizes, bound, int(TIMEOUT_S))
        yield


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> dict[Arch, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    archs: tuple[Arch, ...] = ("llama", "gemma3", "mamba", "falcon-h1")
    return {arch: write_tiny(folder / f"{arch}.gguf", arch) for arch in archs}


@pytest.fixture(scope="session")
def open_tiny(tiny_path: dict[Arch, Path]) -> Iterator[OpenTiny]:
    engines: dict[str, LlamaEngine] = {}

    def get(arch: Arch, *, copy: int = 0, **params: Any) -> LlamaEngine:
        key = f"{arch} {copy} {sorted(params.items())}"
        if key not in engines:
            engines[key] = open_llama(tiny_path[arch], **params)
        forget(engines[key])
        return engines[key]

    yield get
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="session")
def puppet(tmp_path_factory: pytest.TempPathFactory) -> Puppet:
    """Recites "Hello, world!" after `<|go|>`, then ends its turn."""
    return write_puppet(tmp_path_factory.mktemp("puppet") / "p.gguf", ["Hel", "lo", ", ", "wor", "ld", "!"])


@pytest.fixture(scope="session")
def endless_puppet(tmp_path_factory: pytest.TempPathFactory) -> Puppet:
    """Recites the alphabet after `<|go|>`, again and again."""
    script = byte_items("abcdefghijklmnopqrstuvwxyz")
    return write_puppet(tmp_path_factory.mktemp("endless") / "p.gguf", script, loop=True)
