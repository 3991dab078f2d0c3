"""The contracts cover every room, and what no linter checks: sizes, leftovers, and what start-up loads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cli" / "llmrun"
FUNCTION_LINES_AT_MOST = 80
SOURCES = sorted(
    path for folder in ("cli", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)


def test_every_room_has_a_place_in_the_layers() -> None:
    """A new room that no contract knows would be free to import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = set(re.findall(r"llmrun\.(\w+)", " ".join(layers)))
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert placed == rooms | modules


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_stay_short(path: Path) -> None:
    long = {
        node.name: lines
        for node in functions(path)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_AT_MOST
    }
    assert not long


def test_nothing_is_left_to_do() -> None:
    leftovers = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    texts = [*SOURCES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    found = [str(path.relative_to(ROOT)) for path in texts if leftovers.search(path.read_text())]
    assert not found


HEAVY = ("llama_cpp", "numpy", "jinja2", "huggingface_hub", "httpx2", "gguf")
REPORT = """
import os, sys
sys.argv[0] = "llmrun"
os._exit = sys.exit  # how it ends where a thread is still there
from llmrun.__main__ import main
try:
    status = main()
except SystemExit as end:
    status = end.code
heavy = [name for name in {heavy!r} if name in sys.modules]
print("status", status or 0, "loaded", heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "run --help",
        "chat --help",
        "config show",
        "show smollm2-135m",
        "vram smollm2-135m",
        "list",
        "list --json",
        "pull --help",
        "rm --help",
        "estimate -p 10 -n 10 --prefill-rate 10 --decode-rate 10",
        "doctor",
    ],
)
def test_commands_that_need_no_engine_load_none(arguments: str, tmp_path: Path) -> None:
    """Start-up is quick because these stay out; each costs 30 to 250 ms."""
    folders = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CONFIG", "CACHE", "DATA", "STATE")}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LLMRUN_")}
    environment = {**inherited, **folders, "HOME": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", REPORT.format(heavy=HEAVY), *arguments.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr.splitlines()[-1] == "status 0 loaded []", answer.stderr
