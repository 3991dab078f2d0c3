"""What a prompt takes of the context, by what it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmrun.app.answer.overflow import answer_room
from llmrun.app.answer.prompts import Prepared, Prompter
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation, Window
from llmrun.config.views import OutputSettings
from llmrun.errors import TemplateUnusable
from llmrun.events import ContextUse


def context_use(
    prepared: Prepared,
    conversation: Conversation | None,
    window: Window,
    settings: OutputSettings,
    capacity: int,
    prompter: Prompter,
) -> ContextUse | None:
    """Tokens of each part before the answer begins; None where the template has changed a text so that it
    cannot be found again.

    What the template puts before the first message counts as system text, and what it puts between two texts
    with the later one. A summary is history.
    """
    if conversation is None:
        return None
    with_system = bool(conversation.system.strip() or window.summary)
    text, frame = prepared.prompt.text, _frame(prompter, with_system)
    if frame is None:
        return None
    system = _as_rendered(conversation.system, lambda part: text.startswith(frame.head + part))
    newest = _as_rendered(conversation.newest.content, lambda part: text.endswith(part + frame.tail))
    if system is None or newest is None:
        return None
    newest_at, system_end = len(text) - len(newest + frame.tail), len(frame.head + system)
    if newest_at < system_end:
        return None
    sizes = [len(prompter.piece(token)) for token in prepared.tokens]
    newest_tokens = _tokens_of_end(sizes, len(text[newest_at:].encode()))
    later_tokens = _tokens_of_end(sizes, len(text[system_end:].encode()))
    if not window.summary and window.left_out >= len(conversation.exchanges):
        newest_tokens = later_tokens
    prompt_only = ContextUse(
        system_tokens=len(sizes) - later_tokens,
        history_tokens=later_tokens - newest_tokens,
        newest_tokens=newest_tokens,
        answer_tokens=0,
        capacity_tokens=capacity,
    )
    return with_answer(prompt_only, 0, settings, capacity)


def with_answer(use: ContextUse, n_tokens: int, settings: OutputSettings, capacity: int) -> ContextUse:
    """The same prompt with `n_tokens` of its answer, in a context that may have grown meanwhile."""
    room = replace(use, answer_tokens=0, capacity_tokens=capacity).free_tokens
    answer_tokens = max(n_tokens, answer_room(settings, capacity))
    return replace(use, answer_tokens=max(0, min(answer_tokens, room)), capacity_tokens=capacity)


def _as_rendered(content: str, is_there: Callable[[str], bool]) -> str | None:
    """A content as the template shows it, perhaps without white space around it."""
    return next((part for part in (content, content.strip()) if is_there(part)), None)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes before the first text of a conversation, and behind its newest message."""

    head: str
    tail: str


def _frame(prompter: Prompter, with_system: bool) -> _Frame | None:
    """Seen from a conversation whose texts cannot be taken for the template's, which may refuse them."""
    first, last = "7316450298" if with_system else "", "5201948637"
    try:
        text = prompter.chat(Conversation(first, (), Message("user", last)).messages()).prompt.text
    except TemplateUnusable:
        return None
    head, found, _ = text.partition(first or last)
    _, found_last, tail = text.rpartition(last)
    return _Frame(head, tail) if found and found_last else None


def _tokens_of_end(sizes: Sequence[int], n_bytes: int) -> int:
    """How many of the last tokens lie in the last `n_bytes`; counted from the end, since a tokenizer may add
    a BOS token or a blank at the beginning."""
    count = 0
    for size in reversed(sizes):
        n_bytes -= size
        if n_bytes < 0:
            break
        count += 1
    return count
