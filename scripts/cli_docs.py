"""Write docs/reference/cli.md from the program's own help, or check that it is up to date.

    python scripts/cli_docs.py [--check]

Every command and subcommand that is not hidden is asked for its `--help`, in process, at 80 columns and
without colour.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
# what Typer and Rich look at for width and colour; None unsets
ENVIRONMENT = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"} | dict.fromkeys(
    ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
)
INTRODUCTION = """\
# Command line

Made from the program's own `--help` by `make docs`; edit the help texts in the code, not this page.
"""


class DocsError(Exception):
    """The help of a command could not be had."""


def help_text(app: typer.Typer, name: str, path: tuple[str, ...]) -> str:
    """What `name path... --help` prints. Raises DocsError if it fails."""
    from typer.testing import CliRunner

    answer = CliRunner(env=ENVIRONMENT).invoke(app, [*path, "--help"], prog_name=name)
    if answer.exit_code != 0:
        raise DocsError(f"`{' '.join((name, *path))} --help` ended with {answer.exit_code}: {answer.output}")
    return "\n".join(line.rstrip() for line in answer.output.strip().splitlines())


def command_paths(app: typer.Typer) -> Iterator[tuple[str, ...]]:
    """The path of every command that help shows, a group before its commands; () is the program."""
    from typer import Context
    from typer.core import TyperGroup
    from typer.main import get_command

    waiting: list[tuple[tuple[str, ...], object]] = [((), get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield path
        if isinstance(command, TyperGroup):
            context = Context(command)
            children = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
            shown = [((*path, name), child) for name, child in children if child and not child.hidden]
            waiting.extend(reversed(shown))


def render(app: typer.Typer, name: str) -> str:
    """The whole page."""
    sections = [INTRODUCTION]
    for path in command_paths(app):
        heading = f"{'#' * min(len(path) + 2, 4)} {' '.join((name, *path))}"
        sections.append(f"{heading}\n\n```text\n{help_text(app, name, path)}\n```\n")
    return "\n".join(sections)


def difference(old: str, new: str) -> str:
    """A unified diff from the page as it is to the page as it should be; empty if they are equal."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), "cli.md", "the program's help", lineterm=""
    )
    return "\n".join(lines)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/reference/cli.md from the program's help.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    arguments = parser.parse_args()

    from llmrun.commands.main import make_app

    page = render(make_app(), "llmrun")
    if not arguments.check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(page)
        return 0
    if change := difference(TARGET.read_text() if TARGET.exists() else "", page):
        print(f"{change}\n\ndocs/reference/cli.md is out of date; run `make docs`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
