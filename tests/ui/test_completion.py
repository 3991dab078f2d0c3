from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.ui.completion import CompletionFacts, SettingFacts, suggestions

FACTS = CompletionFacts(
    commands={"help": "list commands", "read": "send a file", "regen": "answer again", "set": "change"},
    settings={"think": SettingFacts(("show", "dim", "hide"), "reasoning"), "top_k": SettingFacts()},
    models=lambda: ["smollm2-135m", "gemma3-270m", "bad\x1bname"],
    sessions=lambda: ["Trip", "work"],
)


def offered(before: str) -> list[str]:
    """The lines that completing `before` gives."""
    return [before[: len(before) - s.replaces] + s.text for s in suggestions(FACTS, before)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/", ["/help", "/read ", "/regen", "/set "]),
        ("/RE", ["/read ", "/regen"]),
        ("/set t", ["/set think ", "/set top_k "]),
        ("/set think ", ["/set think show", "/set think dim", "/set think hide"]),
        ("/set think d", ["/set think dim"]),
        ("/set top_k ", []),
        ("/set nonsense ", []),
        ("/load t", ["/load Trip"]),
        ("/model ", ["/model smollm2-135m", "/model gemma3-270m"]),
        ("/model gem", ["/model gemma3-270m"]),
        ("/help x", []),
        ("hello /", []),
        ("hello", []),
        ("/usr/", []),
    ],
)
def test_names(before: str, after: list[str]) -> None:
    assert offered(before) == after


def test_descriptions_stand_beside_commands_and_settings() -> None:
    assert [s.meta for s in suggestions(FACTS, "/regen")] == ["answer again"]
    assert [s.meta for s in suggestions(FACTS, "/set th")] == ["reasoning"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "My notes").mkdir()
    (tmp_path / "My notes" / "a b.txt").touch()
    for name in ("main.py", ".hidden", "bad\x1b[2J", "line\nend"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/read ", ["/read My notes/", "/read main.py"]),
        ("/read m", ["/read main.py"]),
        ("/read My notes/a", ["/read My notes/a b.txt"]),
        ("/read .h", ["/read .hidden"]),
        ("/read ~/ma", ["/read ~/main.py"]),
        ("/read missing/", []),
        ("/read \0", []),
        ("/system @ma", ["/system @main.py"]),
        ("/system ma", []),
        ("/model ./ma", ["/model ./main.py"]),
        ("look at @ma", ["look at @main.py"]),
        ("one\ntwo @ma", ["one\ntwo @main.py"]),
        ("mail@ma", []),
    ],
)
def test_files(folder: Path, before: str, after: list[str]) -> None:
    assert offered(before) == after


def test_absolute_paths(folder: Path) -> None:
    assert offered(f"/read {folder}/ma") == [f"/read {folder}/main.py"]


def test_names_are_asked_for_only_when_needed() -> None:
    def fail() -> list[str]:
        raise AssertionError

    facts = CompletionFacts(commands={"model": ""}, models=fail, sessions=fail)
    assert suggestions(facts, "/mo")
