"""Why a prompt was served from cache only so far, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmrun.events import Difference
from llmrun.gguf.text import printable
from llmrun.prefix.reuse import MemoryKind
from llmrun.units import format_count

_NEARBY_TOKENS = 12
_NEARBY_CHARACTERS = 48
_QUOTED_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Missed:
    """What is known about a prompt of which `reused` tokens came from cache.

    `nearest` is the stored sequence that shares most with it, `common` tokens; None if nothing was stored.
    `other_settings` names what was set otherwise when a longer prefix was stored, `damaged`: a stored state
    could not be read, `rewritten`: the conversation only went on, so that the template changed its past.
    `off`: nothing was looked for beside the live sequence.
    """

    prompt: Sequence[int]
    reused: int
    nearest: Sequence[int] | None = None
    common: int = 0
    other_settings: str = ""
    damaged: bool = False
    rewritten: bool = False
    off: bool = False


def difference(missed: Missed, piece: Callable[[int], bytes]) -> Difference | None:
    """The first difference from the nearest sequence; None where one merely goes on after the other."""
    nearest, at = missed.nearest, missed.common
    if nearest is None or at >= min(len(nearest), len(missed.prompt)):
        return None

    def text(tokens: Sequence[int]) -> str:
        return b"".join(map(piece, tokens)).decode("utf-8", "replace")

    before = text(missed.prompt[max(0, at - _NEARBY_TOKENS) : at])[-_NEARBY_CHARACTERS:]
    stored, prompt = (text(tokens[at : at + _NEARBY_TOKENS]) for tokens in (nearest, missed.prompt))
    return Difference(
        at, printable(before), printable(stored, _NEARBY_CHARACTERS), printable(prompt, _NEARBY_CHARACTERS)
    )


def miss_reason(missed: Missed, found: Difference | None, kind: MemoryKind) -> str:
    """One line on why nothing, or not all that could be expected, was reused; empty on a hit."""
    at = format_count(missed.common)
    if missed.rewritten and found is not None:
        return f"template rewrote history: {_differs(found)}"
    if missed.reused:
        return ""
    if missed.damaged:
        return "state damaged"
    if missed.other_settings:
        return f"settings changed: {missed.other_settings}"
    if missed.nearest is None:
        return "the prefix cache is off" if missed.off else "nothing stored"
    if found is not None and missed.common == 0:
        return _differs(found)
    if missed.common and kind.n_swa:
        return f"the sliding window has passed token {at}"
    if missed.common and kind.recurrent:
        return f"the model's state cannot go back to token {at}"
    return "one token is always evaluated" if found is None else _differs(found)


def _differs(found: Difference) -> str:
    stored, prompt = (printable(text, _QUOTED_CHARACTERS) for text in (found.stored, found.prompt))
    return f'differs from token {format_count(found.token + 1)} ("{stored}" against "{prompt}")'
