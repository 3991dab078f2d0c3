"""A prompt in segments that say where control markers count, so that what a user types stays text.

A chat template pastes contents between control markers such as `<|im_end|>`. If the finished text were read
as a whole, a marker inside a content would become the control token too, and a pasted document could end the
turn and speak as somebody else. Contents are therefore marked before rendering: a Unicode noncharacter, which
no text interchange may hold, is put inside each marker, and the rendered text is cut at these places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmrun.errors import UsageError

NONCHARACTERS = (*map(chr, range(0xFDD0, 0xFDF0)), "\ufffe", "\uffff")


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a prompt. `special`: the texts of control tokens in it are those tokens, else plain text."""

    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a conversation renders to. `opened_reasoning` is the marker of a block that the text ends inside.

    `folded_system`: the system text was put into the first user turn.
    """

    segments: tuple[Segment, ...]
    opened_reasoning: str | None = None
    folded_system: bool = False

    @property
    def text(self) -> str:
        """The whole prompt as text."""
        return "".join(segment.text for segment in self.segments)


class MarkerGuard:
    """Marks control markers in contents and finds them again in the rendered text.

    `texts` is all that goes into a render, template included: the noncharacter is one that occurs in none.
    Raises `UsageError` if there is no such character.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        everything = "\n".join(texts)
        free = (c for c in NONCHARACTERS if c not in everything and json_escape(c) not in everything)
        gap = next(free, None)
        if gap is None:
            raise UsageError("the conversation holds every Unicode noncharacter of the Basic Plane")
        self._gap = gap
        self._markers: set[str] = set()

    def protect(self, content: str, markers: Iterable[str]) -> str:
        """`content` with a gap inside each of `markers`."""
        found = longest_first(markers)
        if not found:
            return content
        self._markers.update(found)
        pattern = "|".join(map(re.escape, found))
        return re.sub(pattern, lambda match: match[0][:1] + self._gap + match[0][1:], content)

    def segments(self, rendered: str) -> tuple[Segment, ...]:
        """Cut a rendered text: protected markers are plain text, all the rest may hold control tokens."""
        # A filter of the template may have escaped the gap, or changed the marker around it: then the cut
        # alone keeps the two halves from being read as one.
        gap = f"(?:{re.escape(self._gap)}|{re.escape(json_escape(self._gap))})"
        markers = [re.escape(m[:1]) + gap + re.escape(m[1:]) for m in longest_first(self._markers)]
        pieces = re.split("(" + "|".join([*markers, gap]) + ")", rendered)
        cut = [Segment(re.sub(gap, "", piece), special=i % 2 == 0) for i, piece in enumerate(pieces)]
        return tuple(segment for segment in cut if segment.text)


def json_escape(text: str) -> str:
    """`text` as it stands inside an ASCII JSON string."""
    return json.dumps(text)[1:-1]


def longest_first(markers: Iterable[str]) -> list[str]:
    """Markers in the order in which a pattern has to try them."""
    return sorted({marker for marker in markers if marker}, key=lambda marker: (-len(marker), marker))
