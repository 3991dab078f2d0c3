"""The documentation agrees with the program: versions, commands, make targets, links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Annotated

import pytest
import typer

import llmrun
from llmrun.config.resources import catalogue_path
from llmrun.store.catalogue import read_catalogue

from scripts import catalogue_docs, cli_docs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
TARGETS = (
    "chat",
    "test",
    "check",
    "lint",
    "docs",
    "docs-check",
    "lock",
    "clean",
    "setup-chat",
    "setup-dev",
    "help",
)


def test_changelog_opens_with_this_version() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == llmrun.__version__


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_the_target(target: str) -> None:
    command = ["make", "--dry-run", "-C", str(ROOT), target]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("target", ["docs", "docs-check"])
def test_make_renews_and_checks_every_generated_page(target: str) -> None:
    command = ["make", "--dry-run", "-C", str(ROOT), target]
    recipe = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"scripts/{script.name}" in recipe for script in (ROOT / "scripts").glob("*_docs.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_existing_make_targets(path: Path) -> None:
    named = set(
        re.findall(r"(?:^|`|\| )make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", path.read_text(), flags=re.MULTILINE)
    )
    assert named <= set(TARGETS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text())
    relative = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    broken = [target for target in relative if not (path.parent / target).exists()]
    assert not broken


def test_the_table_of_models_follows_the_catalogue(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{catalogue_docs.HEAD}| `gone` | 1 | | for nothing |\n\nbehind\n")
    assert catalogue_docs.main(["--check"], page) == 1
    assert catalogue_docs.main([], page) == 0
    assert catalogue_docs.main(["--check"], page) == 0
    text = page.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nbehind\n")
    named = re.findall(r"^\| `(.+?)`", text, flags=re.MULTILINE)
    assert named == list(read_catalogue(catalogue_path()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_existing_python_files(path: Path) -> None:
    """By their path from the top, or from the package."""
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w*-]+\.py)`", path.read_text()))
    places = (ROOT, ROOT / "cli" / "llmrun")
    assert not [name for name in named if not any(any(place.glob(name)) for place in places)]


def small_app() -> typer.Typer:
    """A program with a command, a hidden one and a group."""
    app = typer.Typer()
    group = typer.Typer(help="A group.")
    app.add_typer(group, name="group")

    @app.command()
    def greet(name: str, loud: Annotated[bool, typer.Option(help="A long text. " * 20)] = False) -> None:
        """Greet somebody."""

    @app.command(hidden=True)
    def secret() -> None:
        """Not for everybody."""

    @group.command("inner-one", rich_help_panel="Elsewhere")
    def inner() -> None:
        """Do something inside."""

    return app


def test_cli_page_has_every_shown_command() -> None:
    page = cli_docs.render(small_app(), "demo")
    headings = re.findall(r"^#+ (demo.*)$", page, flags=re.MULTILINE)
    assert sorted(headings) == ["demo", "demo greet", "demo group", "demo group inner-one"]
    assert "Greet somebody" in page
    assert "secret" not in page


def test_cli_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = cli_docs.render(small_app(), "demo")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli_docs.render(small_app(), "demo") == page
    assert "\x1b" not in page
    inside = [line for block in page.split("```")[1::2] for line in block.splitlines()]
    assert max(len(line) for line in inside) <= 80


def test_difference_is_empty_only_for_equal_pages() -> None:
    assert cli_docs.difference("a\nb\n", "a\nb\n") == ""
    assert "+c" in cli_docs.difference("a\nb\n", "a\nc\n")
