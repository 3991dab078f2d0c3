"""The table of commands: each is loaded when it is asked for, and its line of help is its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command, get_command_name

from llmrun.commands.main import COMMANDS, asked_for, make_app

MODULES = {name: f"llmrun.commands.{entry.target.partition(':')[0]}" for name, entry in COMMANDS.items()}
_LOADED = """
import sys
from llmrun.commands.cli import run_cli
status = run_cli(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("llmrun.commands.")), file=sys.stderr)
sys.exit(status)
"""


def loaded_by(*words: str) -> set[str]:
    """Modules of commands that a fresh process has loaded in the end."""
    command = [sys.executable, "-P", "-c", _LOADED, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(ended.stderr.splitlines()[-1].split()) & set(MODULES.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_commands_own(name: str) -> None:
    whole = get_command(make_app())
    own = whole.commands[name].help  # type: ignore[attr-defined]
    assert " ".join(own.split("\n\n")[0].split()) == COMMANDS[name].help
    assert name == get_command_name(name)


def test_help_is_the_same_with_and_without_the_commands() -> None:
    helps = []
    for app in (make_app(), make_app([])):
        command = get_command(app)
        helps.append([(name, c.get_short_help_str(200)) for name, c in command.commands.items()])  # type: ignore[attr-defined]
    assert helps[0] == helps[1]
    assert [name for name, _ in helps[0]] == [*COMMANDS]


@pytest.mark.parametrize("name", ["vram", "list", "show", "config"])
def test_a_command_loads_no_other(name: str) -> None:
    assert loaded_by(name, "--help") == {MODULES[name]}


def test_a_report_loads_no_other_command() -> None:
    numbers = ("--layers", "4", "--kv-heads", "2", "--head-dim", "32", "--params", "1e8")
    assert loaded_by("vram", *numbers) == {MODULES["vram"]}


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("--version",), ("vrma",)])
def test_without_a_command_none_is_loaded(words: tuple[str, ...]) -> None:
    assert loaded_by(*words) == set()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), ""),
        (("--help",), ""),
        (("vram", "run"), "vram"),
        (("--version", "run"), "run"),
        (("--", "show", "x"), "show"),
    ],
)
def test_the_command_is_the_first_word(words: tuple[str, ...], name: str) -> None:
    assert asked_for(words) == name


@pytest.mark.parametrize(
    ("line", "position", "expected"),
    [("llmrun vram --exa", 2, ["--exact"]), ("llmrun cache ", 2, ["ls", "clear"])],
)
def test_shells_complete_the_words_of_every_command(line: str, position: int, expected: list[str]) -> None:
    asked = {"_LLMRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(position)}
    command = [sys.executable, "-P", "-m", "llmrun"]
    ended = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == expected, ended.stderr
