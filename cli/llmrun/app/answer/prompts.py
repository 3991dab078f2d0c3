"""From what is asked to the tokens of a prompt, on one open model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from llmrun.app.loading import Opened
from llmrun.app.prompt_input import check_text
from llmrun.chat.messages import Message
from llmrun.chat.prompting import build_prompt
from llmrun.chat.segments import Prompt, Segment
from llmrun.chat.turns import History, splice
from llmrun.engine.api import Engine
from llmrun.errors import PromptTooLong
from llmrun.units import format_count

log = logging.getLogger("llmrun.prompt")

ANSWER_ROOM = 512
"""Tokens kept free for an answer whose length is not bounded."""

MOST_CONTENTS = 4096
"""Contents of messages whose control texts are remembered: those of a long conversation."""

NO_MEMORY = "memory has no room for a larger context"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt and the history that its tokens make of the sequence."""

    prompt: Prompt
    history: History

    @property
    def tokens(self) -> list[int]:
        """The whole prompt."""
        return self.history.tokens


def log_prompt(prepared: Prepared) -> None:
    """Note the prompt that the model gets (-v); others are rendered only to be counted."""
    log.debug("%s", prepared.prompt.text)


class ControlTexts:
    """Texts in a content that would be read as control tokens; each content is looked through once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.of = lru_cache(MOST_CONTENTS)(self._find)

    def _find(self, content: str) -> frozenset[str]:
        engine = self._engine
        tokens = set(engine.tokenize(content, add_special=False, parse_special=True))
        pieces = {engine.piece(token) for token in tokens if engine.is_control(token)}
        return frozenset(piece.decode("utf-8", "replace") for piece in pieces)


class Prompter:
    """Renders and tokenises, continuing `history`. What was prepared since that changed is remembered."""

    def __init__(self, opened: Opened, history: History, control_texts: ControlTexts | None = None) -> None:
        """`control_texts` of the same engine, where contents are asked about again."""
        self._opened = opened
        self._engine = opened.engine
        self._history = history
        self._control_texts = control_texts or ControlTexts(opened.engine)
        self._prepared: dict[tuple[Message, ...], Prepared] = {}

    def raw(self, text: str) -> Prepared:
        """A text as it is; markers in it count. Raises `UsageError` where it is not UTF-8."""
        check_text(text)
        return self._splice(Prompt((Segment(text, special=True),)))

    def chat(self, messages: Sequence[Message]) -> Prepared:
        """Messages through the template.

        Raises:
            UsageError: a text is not UTF-8.
            TemplateUnusable: the chat template fails or refuses.
        """
        key = tuple(messages)
        if key not in self._prepared:
            self._prepared[key] = self._splice(self._render(key))
        return self._prepared[key]

    def piece(self, token: int) -> bytes:
        """Bytes of a token, control tokens by their name."""
        return self._engine.piece(token)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt; errors as in `chat`."""
        return len(self.chat(messages).tokens)

    def refusal(self, n_tokens: int, *, droppable: bool) -> PromptTooLong:
        """What to raise where a prompt has more tokens than the context.

        `droppable`: it would fit without older messages, but the policy is to stop.
        """
        facts = self._engine.facts
        trained, wanted = facts.n_ctx_train, n_tokens + ANSWER_ROOM
        if n_tokens >= trained > 0:
            way_out = f"shorten the prompt: the model was trained for {format_count(trained)} tokens"
        elif self._opened.may_grow:
            way_out = f"{NO_MEMORY}: free some, or choose a smaller --kv-type"
        else:
            way_out = f"raise it with -c {min(wanted, trained or wanted)}"
        if droppable:
            way_out += ", or let its oldest messages go (--overflow drop)"
        return PromptTooLong(
            f"the prompt has {format_count(n_tokens)} tokens, "
            f"the context holds {format_count(facts.n_ctx_seq)}",
            way_out,
        )

    def _splice(self, prompt: Prompt) -> Prepared:
        return Prepared(prompt, splice(self._history, prompt, self._opened.tokenizer))

    def _render(self, messages: Sequence[Message]) -> Prompt:
        for message in messages:
            check_text(message.content)
        return build_prompt(
            messages,
            self._opened.renderer,
            control_texts=self._control_texts.of,
            fold_system=self._opened.settings.output.fold_system,
        )
