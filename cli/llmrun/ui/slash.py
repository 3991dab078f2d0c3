"""What a line typed in a chat is: a message, or a command such as `/read notes.txt`.

A command is a slash and a word at the very start of a line. Everything after the word is its argument, inner
spaces and quotes included, so a file name with spaces needs no quoting. A message may begin with a slash all
the same: a doubled slash or a leading space says so, and is taken away. Several lines are a message as they
stand, whatever they begin with: who pastes a page wants it sent. Only a command whose argument is free text
may have several.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_COMMAND = re.compile(r"/([A-Za-z?]\S*)(?:\s+(.*))?", re.DOTALL)
_ESCAPED = re.compile(r" (?= */)|/(?=/+[A-Za-z?])")
_MOST_SUGGESTIONS = 3
_LEAST_LIKENESS = 0.5


@dataclass(frozen=True, slots=True)
class Message:
    """Text for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """`name` as it is known, without its slash; `argument` without spaces around it."""

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A slash and a word that is no command; `suggestions` are the nearest known names, best first."""

    name: str
    suggestions: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """What is wrong."""
        return f"there is no command /{self.name}"

    @property
    def hint(self) -> str:
        """What to do next."""
        literal = f"//{self.name} sends it as text"
        if not self.suggestions:
            return literal
        return f"did you mean {' or '.join('/' + name for name in self.suggestions)}? {literal}"


Line = Message | Command | Unknown


def parse_line(text: str, known: Collection[str], free_text: Collection[str] = ()) -> Line:
    """What `text` asks for, given the `known` command names; letter case of a name does not matter.

    Commands in `free_text` take an argument of several lines; any other text of several lines is a message.
    """
    stripped = text.rstrip()
    if "\n" in stripped:
        match = _COMMAND.fullmatch(stripped)
        name = _known_name(match[1], free_text) if match else None
        return Command(name, match[2] or "") if match and name else Message(text)
    if _ESCAPED.match(text):
        return Message(text[1:])
    match = _COMMAND.fullmatch(stripped)
    if match is None:
        return Message(text)
    name = _known_name(match[1], known)
    return Unknown(match[1], _nearest(match[1], known)) if name is None else Command(name, match[2] or "")


def _known_name(word: str, known: Collection[str]) -> str | None:
    return next((name for name in known if name.casefold() == word.casefold()), None)


def _nearest(word: str, known: Collection[str]) -> tuple[str, ...]:
    """Names that `word` abbreviates, then those spelt much like it; none for a path."""
    import difflib

    if "/" in word:
        return ()
    word = word.casefold()
    begun = sorted(name for name in known if name.casefold().startswith(word))
    alike = difflib.get_close_matches(word, list(known), n=_MOST_SUGGESTIONS, cutoff=_LEAST_LIKENESS)
    return tuple(dict.fromkeys([*begun, *alike]))[:_MOST_SUGGESTIONS]
