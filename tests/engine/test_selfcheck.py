"""The engine's self-check in a child process: the build it describes, tokens it makes, deaths it survives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.engine.probe import child
from llmrun.engine.selfcheck import parse_system_info, probe_build, probe_generation
from llmrun.errors import EngineFailure


def test_the_build_tells_what_it_is() -> None:
    build = probe_build()
    assert Path(build.path).is_file()
    assert build.version
    assert "CPU" in build.backends
    assert [device.kind for device in build.devices].count("cpu") == 1
    assert build.features["CPU"]


def test_a_tiny_model_generates_in_a_child() -> None:
    assert probe_generation(extra_bufts=False, gpu_layers=0, n_threads=1) > 1


def test_a_child_that_dies_is_a_failure_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    monkeypatch.setattr(child, "command", lambda entry: dying)
    with pytest.raises(EngineFailure, match="SIGSEGV"):
        probe_build()
    with pytest.raises(EngineFailure, match="SIGSEGV"):
        probe_generation(extra_bufts=True, gpu_layers=0, n_threads=1)


NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,11}", fullmatch=True)
FEATURES = st.dictionaries(NAMES, st.dictionaries(NAMES, st.sampled_from(["0", "1", "500,600"]), min_size=1))


@given(FEATURES)
def test_the_systems_line_is_read_back(features: dict[str, dict[str, str]]) -> None:
    line = ""
    for backend, values in features.items():
        line += f"{backend} : " + "".join(f"{name} = {value} | " for name, value in values.items())
    assert parse_system_info(line) == features


@given(st.text())
def test_any_other_line_is_read_as_far_as_it_goes(line: str) -> None:
    assert all(name and values for name, values in parse_system_info(line).items())
