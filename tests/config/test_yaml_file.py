"""YAML files: what they hold, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrun.config.yaml_file import read_with_lines
from llmrun.errors import UsageError


def test_a_mapping_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "ctx: 4096\ntemp: 0.5\nstop: [a, ü]\nflash: true\nnested: {a: null}\n1: x\n", encoding="utf-8"
    )
    expected = {"ctx": 4096, "temp": 0.5, "stop": ["a", "ü"], "flash": True, "nested": {"a": None}, "1": "x"}
    assert read_with_lines(path)[0] == expected


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_is_an_empty_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_with_lines(path)[0] == {}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a: 1\nb: [1, 2\nc: 3\n", 3),
        (b"a: 1\n\tb: 2\n", 2),
        (b"a: 1\nb: 2\na: 3\n", 3),
        (b"a:\n  b: 1\n  b: 2\n", 3),
        (b"- a\n- b\n", 1),
        (b"just text\n", 1),
        (b"a: 1\nb: \xff\n", 2),
        (b"a: 1\n? [x]\n: 2\n", 2),
        (b"a: &x 1\nb: *x\n", 2),
        (b"a: 1\nb: !!python/object/apply:os.system ['true']\n", 2),
        (b"a: 1\n---\nb: 2\n", 2),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_with_lines(path)
    assert f"{path}, line {line}:" in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_with_lines(path)


def test_huge_and_deep_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for content in ("a: " + "x" * (1 << 20), "[" * 100_000):
        path.write_text(content)
        with pytest.raises(UsageError):
            read_with_lines(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=80), st.text(alphabet="ab:-[]{}&*!?#'\"\n\t 01", max_size=60)))
def test_any_content_is_a_mapping_or_a_usage_error(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        result = read_with_lines(path)[0]
    except UsageError as error:
        result = {"error": error.message}
    assert all(isinstance(key, str) for key in result)
