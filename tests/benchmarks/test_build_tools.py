"""The tools are built like the engine, and nothing is taken for built that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.build_tools import cmake_commands, find_tool, tools_recipe
from benchmarks.machine import CannotRun
from scripts import build_engine


def test_the_engine_flags_are_the_tools_flags() -> None:
    engine, tools = build_engine.make_recipe("cpu"), tools_recipe()
    left_out = set(engine.cmake_flags) - set(tools.cmake_flags)
    assert left_out == {"-DLLAVA_BUILD=OFF"}
    assert tools.compiler_flags == engine.compiler_flags
    assert tools.source == engine.source


def test_a_library_with_amx_is_another_build() -> None:
    assert tools_recipe(amx=True).compiler_flags == ()
    if tools_recipe().compiler_flags:
        assert tools_recipe(amx=True).key != tools_recipe().key


def test_targets_and_flags_reach_cmake(tmp_path: Path) -> None:
    configure, build = cmake_commands(tools_recipe(), tmp_path / "s", tmp_path / "b", ["llama-server"], 3)
    assert set(tools_recipe().cmake_flags) <= set(configure)
    assert build[-4:] == ["-j", "3", "--target", "llama-server"]


def test_a_missing_tool_is_named_with_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMRUN_CACHE_DIR", str(tmp_path))
    with pytest.raises(CannotRun, match=r"benchmarks\.build_tools llama-server"):
        find_tool("llama-server")
    made = tmp_path / "engine" / f"tools-{tools_recipe().key}" / "bin" / "llama-server"
    made.parent.mkdir(parents=True)
    made.touch()
    assert find_tool("llama-server") == made
