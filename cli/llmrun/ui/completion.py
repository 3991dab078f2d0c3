"""What Tab offers in a chat: commands, then what a command's argument can be.

Names come from a `CompletionFacts` handed in. Models and sessions are asked for when Tab needs them, files
are read from disk. Names that hold control characters are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ArgumentKind = Literal["file", "model", "session", "setting", "text"]
"""What an argument names; `text` is free text or `@FILE`."""

ARGUMENTS: Mapping[str, ArgumentKind] = {
    "read": "file",
    "system": "text",
    "set": "setting",
    "save": "session",
    "load": "session",
    "model": "model",
}

_MOST_FILES = 1000
_COMMAND_WORD = re.compile(r"/(\S*)")
_ARGUMENT = re.compile(r"/(\S+)[ \t]+(.*)")
_AT_FILE = re.compile(r"(?:^|(?<=\s))@(\S*)$")
_PATH = re.compile(r"\.{0,2}/|~")


def _none() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """Words a setting takes, empty where it takes numbers or text, and one line about it."""

    words: Sequence[str] = ()
    help: str = ""


@dataclass(frozen=True, slots=True)
class CompletionFacts:
    """Everything that can be completed: command name (no slash) -> one line about it, and so on."""

    commands: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, SettingFacts] = field(default_factory=dict)
    models: Callable[[], Sequence[str]] = _none
    sessions: Callable[[], Sequence[str]] = _none
    arguments: Mapping[str, ArgumentKind] = field(default_factory=lambda: ARGUMENTS)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`text` to put in place of the `replaces` characters before the cursor; `meta` is shown beside it."""

    text: str
    replaces: int
    meta: str = ""


def suggestions(facts: CompletionFacts, before: str) -> list[Suggestion]:
    """What may follow `before`, the text up to the cursor."""
    if word := _COMMAND_WORD.fullmatch(before):
        return _commands(facts, word[1])
    argument = _ARGUMENT.fullmatch(before)
    kind = facts.arguments.get(argument[1].casefold()) if argument else None
    if argument and kind:
        return _arguments(facts, kind, argument[2])
    at_file = _AT_FILE.search(before)
    return list(_files(at_file[1])) if at_file else []


def _commands(facts: CompletionFacts, begun: str) -> list[Suggestion]:
    ends = {name: " " if name in facts.arguments else "" for name in facts.commands}
    rows = ((name, about) for name, about in facts.commands.items() if _begins(name, begun))
    return [Suggestion(f"/{name}{ends[name]}", len(begun) + 1, about) for name, about in rows]


def _arguments(facts: CompletionFacts, kind: ArgumentKind, begun: str) -> list[Suggestion]:
    match kind:
        case "file":
            return list(_files(begun))
        case "text":
            return list(_files(begun[1:])) if begun.startswith("@") else []
        case "session":
            return _names(facts.sessions(), begun)
        case "model":
            return list(_files(begun)) if _PATH.match(begun) else _names(facts.models(), begun)
        case "setting":
            return _setting(facts, begun)


def _setting(facts: CompletionFacts, begun: str) -> list[Suggestion]:
    name, space, value = begun.partition(" ")
    if not space:
        rows = ((row, known.help) for row, known in facts.settings.items() if _begins(row, begun))
        return [Suggestion(row + " ", len(begun), about) for row, about in rows]
    words = facts.settings[name].words if name in facts.settings else ()
    return _names(words, value.lstrip())


def _names(names: Iterable[str], begun: str) -> list[Suggestion]:
    return [Suggestion(name, len(begun)) for name in names if _begins(name, begun) and name.isprintable()]


def _begins(name: str, begun: str) -> bool:
    return name.casefold().startswith(begun.casefold())


def _files(begun: str) -> Iterator[Suggestion]:
    """Files and folders whose path begins so; hidden ones only after a dot. An unreadable folder has none."""
    folder, begun_name = os.path.split(begun)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in _first(entries, begun_name))
    except (OSError, ValueError):  # ValueError: a null character in the path
        return
    for name, is_folder in found:
        yield Suggestion(name + "/" if is_folder else name, len(begun_name))


def _first(entries: Iterable[os.DirEntry[str]], begun: str) -> Iterator[os.DirEntry[str]]:
    count = 0
    for entry in entries:
        hidden = entry.name.startswith(".") and not begun.startswith(".")
        if entry.name.startswith(begun) and entry.name.isprintable() and not hidden:
            yield entry
            count += 1
            if count == _MOST_FILES:
                return
