"""The engine build: what its cache key covers, one build at a time, and failures told in words."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path

import pytest

from llmrun.config import dirs

from scripts import build_engine
from scripts.build_engine import BuildError, Recipe, Source

RECIPE = Recipe(
    source=Source("an-engine", "1.2.3", "0" * 64),
    backend="cpu",
    cmake_flags=("-DA=ON",),
    compiler_flags=("-mno-b",),
    compilers=("cc", "c++"),
    interpreter="cpython-311-linux-x86_64",
    cpu="avx avx2",
)


@pytest.mark.parametrize(
    "change",
    [
        {"source": Source("an-engine", "1.2.4", "0" * 64)},
        {"source": Source("an-engine", "1.2.3", "1" * 64)},
        {"backend": "cuda"},
        {"cmake_flags": ("-DA=OFF",)},
        {"compiler_flags": ()},
        {"compilers": ("clang", "clang++")},
        {"interpreter": "cpython-312-linux-x86_64"},
        {"cpu": "avx avx2 avx512f"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_key_covers_every_field(change: dict[str, object]) -> None:
    assert dataclasses.replace(RECIPE, **change).key != RECIPE.key  # type: ignore[arg-type]
    assert dataclasses.replace(RECIPE).key == RECIPE.key


def test_this_machine_has_a_recipe_for_every_backend() -> None:
    keys = {build_engine.make_recipe(backend).key for backend in build_engine.BACKEND_FLAGS}
    assert len(keys) == len(build_engine.BACKEND_FLAGS)


def test_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BuildError, match="cuda") as refused:
        build_engine.make_recipe("abacus")
    assert "abacus" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "a==1", f"a==1 --hash=sha256:{'0' * 64}\nb==2 --hash=sha256:{'0' * 64}"]
)
def test_lock_must_pin_one_source(text: str) -> None:
    with pytest.raises(BuildError):
        build_engine.read_lock(text)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "a-compiler")
    with pytest.raises(BuildError) as told:
        build_engine.check_tools("cpu")
    assert all(name in str(told.value) for name in ("cmake 3.21", "a-compiler", "ninja or make"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which neither tools nor a download are needed."""
    monkeypatch.setattr(build_engine, "check_tools", lambda backend: None)
    monkeypatch.setattr(build_engine, "fetch_sdist", lambda source, root: root / "source.tar.gz")
    return tmp_path


def stand_in_for_pip(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Run `program` where the build runs pip; sys.argv holds pip's arguments."""
    monkeypatch.setattr(build_engine, "_pip", lambda *arguments: [sys.executable, "-c", program, *arguments])


MAKES_A_WHEEL = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
folder.mkdir()
(folder / "an_engine.whl").write_text("wheel")
with open({count!r}, "a") as count:
    count.write("built\\n")
"""


def test_one_build_serves_all_who_ask(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = cache / "count"
    stand_in_for_pip(monkeypatch, MAKES_A_WHEEL.format(count=str(count)))
    wheels: list[Path] = []
    threads = [
        threading.Thread(target=lambda: wheels.append(build_engine.build(RECIPE, cache))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wheels == [cache / RECIPE.key / "an_engine.whl"] * 3
    assert count.read_text() == "built\n"
    assert not list(cache.glob("build-*"))


def test_failed_build_shows_the_end_of_its_log_and_caches_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_for_pip(monkeypatch, "import sys; print('first'); print('\\n' * 99); print('boom'); sys.exit(1)")
    with pytest.raises(BuildError) as told:
        build_engine.build(RECIPE, cache)
    log = cache / f"{RECIPE.key}.log"
    assert str(log) in str(told.value)
    assert "boom" in str(told.value)
    assert "first" not in str(told.value)
    assert "first" in log.read_text()
    assert not (cache / RECIPE.key).exists()


def test_cached_source_with_another_hash_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        build_engine, "_pip", lambda *arguments: [sys.executable, "-c", "import sys; sys.exit(1)"]
    )
    (tmp_path / "sdist").mkdir()
    (tmp_path / "sdist" / "an_engine-1.2.3.tar.gz").write_bytes(b"tampered")
    with pytest.raises(BuildError, match="downloaded"):
        build_engine.fetch_sdist(RECIPE.source, tmp_path)


def test_build_flags_replace_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag of the caller's would change the wheel but not the key."""
    monkeypatch.setenv("CFLAGS", "-O0")
    monkeypatch.setenv("CMAKE_ARGS", "-DSTRAY=ON")
    environment = build_engine._environment(("-DA=ON",), ("-mno-b",))
    assert environment["CFLAGS"] == environment["CXXFLAGS"] == "-mno-b"
    assert environment["CMAKE_ARGS"] == "-DA=ON"


def test_a_toolkit_beside_the_path_is_found_and_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CMake looks for nvcc on PATH, where its installer does not put it."""
    nvcc = tmp_path / "nvcc"
    nvcc.touch(mode=0o755)
    monkeypatch.setattr(build_engine, "TOOL_FOLDERS", (str(tmp_path),))
    assert build_engine._find_tool("nvcc") is not None
    assert str(tmp_path) in build_engine._environment((), ())["PATH"].split(os.pathsep)


def test_cache_is_inside_the_cache_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LLMRUN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert build_engine.cache_root() == dirs.user_cache_dir(os.environ) / "engine"
        monkeypatch.delenv(variable)
    assert build_engine.cache_root() == dirs.user_cache_dir(os.environ) / "engine"
