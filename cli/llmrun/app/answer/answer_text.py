"""Sampled tokens to final text: bytes, then characters, then reasoning and answer, then stop strings.

Text is final when no later token can change it: a character whose bytes are not all there, the beginning
of a marker and the beginning of a stop string are held back. Bytes that can never become a character come
out as U+FFFD; a character that is incomplete when the answer ends is left out whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from llmrun.chat.reasoning import MARKER_TEXTS, ReasoningSplitter
from llmrun.chat.stop import StopMatcher
from llmrun.engine.api import Engine
from llmrun.events import TextKind

Part = tuple[TextKind, str]


class AnswerText:
    """Collects one answer. `splitter` None takes the text as it is, for raw completions."""

    def __init__(self, engine: Engine, stops: Sequence[str], splitter: ReasoningSplitter | None) -> None:
        self._engine = engine
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = splitter
        self._stops = StopMatcher(stops)
        self._texts: dict[TextKind, list[str]] = {"answer": [], "reasoning": []}

    @property
    def answer(self) -> str:
        """The final answer text so far."""
        return "".join(self._texts["answer"])

    @property
    def reasoning(self) -> str:
        """The final reasoning text so far."""
        return "".join(self._texts["reasoning"])

    @property
    def kind(self) -> TextKind:
        """What the last token belonged to."""
        return self._splitter.kind if self._splitter else "answer"

    @property
    def closing_marker(self) -> str | None:
        """What would close the reasoning block under way, None outside of one."""
        return self._splitter.closing_marker if self._splitter else None

    @property
    def stopped(self) -> bool:
        """True when a stop string has ended the answer."""
        return self._stops.stopped

    def feed(self, token: int) -> list[Part]:
        """Text that this token makes final."""
        if self._hidden(token):
            return []
        text = self._decoder.decode(self._engine.piece(token))
        parts: list[Part] = self._splitter.feed(text) if self._splitter else [("answer", text)]
        return self._take(parts)

    def _hidden(self, token: int) -> bool:
        """Control tokens are never text, but some are the markers that the splitter looks for."""
        if not self._engine.is_control(token):
            return False
        wanted = self._splitter is not None and self._splitter.wants_markers
        return not (wanted and self._engine.piece(token).decode("utf-8", "replace") in MARKER_TEXTS)

    def finish(self) -> list[Part]:
        """What was held back, now that the answer has ended."""
        parts = self._take(self._splitter.finish()) if self._splitter else []
        rest = self._stops.finish()
        if rest:
            parts.append(("answer", rest))
            self._texts["answer"].append(rest)
        return parts

    def _take(self, parts: Sequence[Part]) -> list[Part]:
        final: list[Part] = []
        for kind, text in parts:
            shown = self._stops.feed(text)[0] if kind == "answer" else text
            if shown:
                self._texts[kind].append(shown)
                final.append((kind, shown))
        return final
