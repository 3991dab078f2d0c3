"""Reasoning and answer of one generated text, told apart while it streams.

Reasoning models write their thoughts before the answer, between two markers that differ by family; some
templates write the opening one themselves, so that only the closing one is generated. A marker counts only
where the model's format has it: at the start of the text or right after a closed block. Later on it is text,
for instance in an answer about these very markers. The families' markers are those of their published chat
templates; gpt-oss's are the channels of the harmony format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmrun.events import TextKind

CLOSING = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<reason>": "</reason>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|channel|>commentary<|message|>": "<|end|>",
}
"""Closing marker of each opening one."""

ANSWER_OPENINGS = ("<|channel|>final<|message|>", "<|START_RESPONSE|>")
"""Markers after which the answer begins at once."""

TURN_OPENINGS = ("<|start|>assistant",)
"""What the model may write between two blocks."""

BETWEEN_BLOCKS = (*CLOSING, *dict.fromkeys(CLOSING.values()), *ANSWER_OPENINGS, *TURN_OPENINGS)
"""All that counts outside a block and before the answer. A lone closing marker closes an empty block."""

MARKER_TEXTS = frozenset(
    token for marker in BETWEEN_BLOCKS for token in re.findall(r"<[^<>]+>|\[[^]]+]|◁[^▷]+▷", marker)
)
"""Texts of single tokens that must reach the splitter even where a vocabulary calls them control tokens."""

BLOCK_SEPARATOR = "\n\n"

Part = tuple[TextKind, str]


class ReasoningSplitter:
    """Splits a stream into reasoning and answer, the same for every way the text is cut into pieces.

    `opened` is the opening marker when the prompt ended inside a block (`Prompt.opened_reasoning`). White
    space around a block and inside its ends is dropped; text without markers passes unchanged.
    """

    def __init__(self, opened: str | None = None) -> None:
        self._held = ""
        self._block = opened
        self._answering = False
        self._seen_marker = opened is not None
        self._block_has_text = False
        self._reasoned = False

    @property
    def wants_markers(self) -> bool:
        """False once the answer has begun: from then on control tokens are nothing but noise."""
        return not self._answering

    @property
    def kind(self) -> TextKind:
        """What a token belongs to that made no text final: "reasoning" from a marker up to the answer."""
        return "reasoning" if self._seen_marker and not self._answering else "answer"

    @property
    def closing_marker(self) -> str | None:
        """What would close the block the text is inside of; None outside of one."""
        return None if self._block is None else CLOSING[self._block]

    def feed(self, text: str) -> list[Part]:
        """What `text` makes final, in order."""
        self._held += text
        parts: list[Part] = []
        while self._held and self._step(parts, last=False):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that no more text comes."""
        parts: list[Part] = []
        while self._held and self._step(parts, last=True):
            pass
        self._held = ""
        return parts

    def _step(self, parts: list[Part], *, last: bool) -> bool:
        """Consume a piece of the held text; False when more text is needed."""
        if self._answering:
            parts.append(("answer", self._held))
            self._held = ""
            return False
        if self._block is None:
            return self._step_outside(last=last)
        return self._step_inside(parts, self._block, last=last)

    def _step_outside(self, *, last: bool) -> bool:
        body = self._held.lstrip()
        marker = next((m for m in BETWEEN_BLOCKS if body.startswith(m)), None)
        if marker is None:
            if not last and may_become(body, BETWEEN_BLOCKS):
                return False
            self._begin_answer(body if self._seen_marker else self._held)
            return True
        self._held = body[len(marker) :]
        self._seen_marker = True
        if marker in CLOSING:
            self._block, self._block_has_text = marker, False
        elif marker in ANSWER_OPENINGS:
            return self._open_answer()
        return True

    def _open_answer(self) -> bool:
        self._begin_answer(self._held)
        return True

    def _begin_answer(self, text: str) -> None:
        self._answering = True
        self._held = text

    def _step_inside(self, parts: list[Part], opening: str, *, last: bool) -> bool:
        closing = CLOSING[opening]
        if not self._block_has_text:
            self._held = self._held.lstrip()
            # Some models repeat the marker that the prompt already holds.
            if self._held.startswith(opening):
                self._held = self._held[len(opening) :]
                return True
            if not last and may_become(self._held, (opening,)):
                return False
        text, found, rest = self._held.partition(closing)
        if found:
            self._reason(parts, text.rstrip())
            self._block, self._held = None, rest
            return True
        keep = 0 if last else unfinished_length(text, closing)
        final = text[: len(text) - keep].rstrip()
        self._reason(parts, final)
        self._held = text[len(final) :]
        return False

    def _reason(self, parts: list[Part], text: str) -> None:
        if not text:
            return
        separator = BLOCK_SEPARATOR if self._reasoned and not self._block_has_text else ""
        parts.append(("reasoning", separator + text))
        self._reasoned = self._block_has_text = True


def may_become(text: str, markers: Iterable[str]) -> bool:
    """True if more text may turn `text` into one of `markers`."""
    return any(marker.startswith(text) for marker in markers)


def unfinished_length(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
