"""What a request takes over from those before it and leaves for those to come: a chat's view of the cache."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import islice

from llmrun.app.answer.prompts import Prepared, Prompter
from llmrun.app.loading import Opened
from llmrun.app.prefixes.cache import PrefixCache
from llmrun.app.prefixes.cut_points import cut_points
from llmrun.app.prefixes.disk import disk_prefixes
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Window
from llmrun.chat.turns import History, continued_tokens
from llmrun.errors import TemplateUnusable, UsageError
from llmrun.events import Event, Notice
from llmrun.metrics.clock import Clock
from llmrun.prefix.reuse import common_prefix

MOST_RECALLED = 16
"""Conversations on disk that a resumed one is compared with."""

MESSAGES_TO_COME = (Message("user", "A"), Message("user", "1"))
"""Messages that have nothing in common, so that what their prompts share does not depend on them."""


class Reuse:
    """The prefix cache of one open model, asked in terms of conversations."""

    def __init__(self, opened: Opened, clock: Clock, *, converses: bool) -> None:
        """`converses`: what is answered may be asked to go on, now or after a resumption."""
        self._opened = opened
        self._converses = converses
        self._said: tuple[Message, ...] = ()  # what the sequence holds, as messages
        enabled = opened.settings.context.prefix_cache
        self.cache = PrefixCache(opened.engine, clock, disk=disk_prefixes(opened), enabled=enabled)

    def recall(self, history: History, conversation: Conversation, window: Window) -> History:
        """The history that has most of a conversation's tokens: that of the sequence, or one from disk.

        The disk is asked where the sequence holds another conversation, as after a resumption.
        """
        messages = conversation.messages(window)
        if not conversation.exchanges or self._goes_on(messages):
            return history
        tokenizer = self._opened.tokenizer
        prompt = Prompter(self._opened, History()).chat(messages).prompt
        candidates = (history, *islice(self.cache.remembered(), MOST_RECALLED))
        return max(candidates, key=lambda one: continued_tokens(one, prompt, tokenizer))

    def bring_near(
        self, prepared: Prepared, messages: tuple[Message, ...]
    ) -> Generator[Event, None, tuple[int, ...]]:
        """Take from the cache what it has; returns the places where it wants to take checkpoints."""
        tokens, text, piece = prepared.tokens, prepared.prompt.text, self._opened.engine.piece
        return (
            yield from self.cache.prepare(
                tokens,
                lambda start: cut_points(messages, text, tokens, piece, start),
                goes_on=self._goes_on(messages),
            )
        )

    def answered(self, messages: tuple[Message, ...], answer: Message) -> None:
        """The sequence holds the prompt of `messages` and this answer now."""
        self._said = (*messages, answer)

    def keep(
        self, history: History, n_prompt: int, spent_s: float, *, leaving: bool = False
    ) -> Iterator[Notice]:
        """Keep on disk what pays; arguments as in `PrefixCache.keep`."""
        return self.cache.keep(n_prompt, spent_s, history if self._converses else None, leaving=leaving)

    def read_ahead(self, prompter: Prompter) -> None:
        """Evaluate what the next message will come behind, whatever it is, while its author thinks about it.

        What is not in the cache yet are the last token of an answer that was cut off, and what the template
        puts between an answer and a message. `prompter` continues the answer.
        """
        if not self._converses or not self.cache.reads_ahead:
            return
        with suppress(TemplateUnusable, UsageError):  # which the message itself will meet again
            one, other = (prompter.chat((*self._said, message)).tokens for message in MESSAGES_TO_COME)
            self.cache.read_ahead(one[: common_prefix(one, other)])

    def _goes_on(self, messages: tuple[Message, ...]) -> bool:
        """True if the messages continue what was said last."""
        return bool(self._said) and messages[: len(self._said)] == self._said
