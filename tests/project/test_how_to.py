"""The shell examples of docs/how-to really run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.waiting import TIMEOUT_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "scripts.md"
_BLOCK = re.compile(r"(?:^<!-- needs (\w+) -->\n)?^```sh\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NOTES = "The boiler was repaired on Monday. The bill is 80 euros.\n"
QUESTIONS = "Name a colour.\nName a bird.\n"


@dataclass(frozen=True, slots=True)
class Example:
    """A block of shell commands, and the program it needs beside sh and python3."""

    needs: str
    script: str


EXAMPLES = [Example(*found) for found in _BLOCK.findall(PAGE.read_text(encoding="utf-8"))]


def example(part: str) -> Example:
    (found,) = [one for one in EXAMPLES if part in one.script]
    return found


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder with the files the examples speak of, and llmrun on the path."""

    cli: Cli

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run it; answers are short."""
        env = self.cli.environment({"LLMRUN_MAX_TOKENS": "4", "LLMRUN_CTX": "512"})
        env["PATH"] = f"{self.cli.folder / 'bin'}:{env['PATH']}"
        env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        return subprocess.run(
            ["sh", "-c", f"M=smollm2-135m\n{script}"],
            cwd=self.cli.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def shows(self, found: Example) -> str:
        """What an example writes on stdout; it must succeed without a word on stderr."""
        if found.needs and shutil.which(found.needs) is None:
            pytest.skip(f"there is no {found.needs}")
        done = self.run(found.script)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def shell(cli: Cli) -> Shell:
    program = cli.folder / "bin" / "llmrun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmrun "$@"\n')
    program.chmod(0o700)
    (cli.folder / "notes.txt").write_text(NOTES)
    (cli.folder / "todo.txt").write_text("Pay the bill.\n")
    (cli.folder / "questions.txt").write_text(QUESTIONS)
    return Shell(cli)


def test_the_page_has_the_examples_tested_here() -> None:
    assert len(EXAMPLES) >= 10
    assert {one.needs for one in EXAMPLES} == {"", "jq", "git"}


def looked_at_below(one: Example) -> bool:
    return any(part in one.script for part in ("while read", "xargs", "case $?", "hooks"))


@pytest.mark.parametrize(
    "found",
    [one for one in EXAMPLES if not looked_at_below(one)],
    ids=lambda one: re.sub(r"\W+", "-", one.script)[:40],
)
def test_an_example_runs(shell: Shell, found: Example) -> None:
    shown = shell.shows(found)
    asks_on_stdout = "llmrun" in found.script and "=$(" not in found.script
    assert bool(shown.strip()) or not asks_on_stdout


def test_a_loop_asks_every_question(shell: Shell) -> None:
    shell.shows(example("while read"))
    assert len(shell.cli.request_log) == QUESTIONS.count("\n")


def test_files_at_once_each_get_their_summary(shell: Shell) -> None:
    shell.shows(example("xargs -0 -P"))
    for name in ("notes", "todo", "questions"):
        assert (shell.cli.folder / f"{name}.txt.summary").read_text().strip()


def test_exit_codes_tell_what_went_wrong(shell: Shell) -> None:
    script = example("case $?").script
    (shell.cli.folder / "long.txt").write_text("word " * 1000)
    done = shell.run(script)
    assert done.returncode == 0
    assert "too long for the context" in done.stderr
    (shell.cli.folder / "long.txt").unlink()
    assert shell.run(script).returncode == 1
    (shell.cli.folder / "long.txt").write_text("word")
    assert shell.run(script).returncode == 0
    assert (shell.cli.folder / "out.txt").read_text().strip()


def test_the_hook_begins_the_commit_message(shell: Shell) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    setup = "git init -q . && git add notes.txt"
    hook = example("prepare-commit-msg").script
    commit = "GIT_EDITOR=true git -c user.name=a -c user.email=a@example.org commit -q && git log --format=%s"
    done = shell.run(f"{setup}\n{hook}\n{commit}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
