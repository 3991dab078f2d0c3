"""From messages to a prompt: what the template gets to see, and what to do where it refuses.

Two habits of templates have to be met. Some know no system role: the system text then leads the first user
turn. And they disagree on past reasoning: some read it from a key of the message, some cut it out of the
content by its closing marker, most expect the answer alone; the template's source says which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from llmrun.chat.messages import Message
from llmrun.chat.reasoning import CLOSING
from llmrun.chat.segments import MarkerGuard, Prompt
from llmrun.chat.template import TemplateRaised, TemplateRenderer
from llmrun.errors import TemplateUnusable, UsageError

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """How a template takes past reasoning: in message key `key`, else in the content between `markers`."""

    key: str | None = None
    markers: tuple[str, str] | None = None


def build_prompt(
    messages: Sequence[Message],
    renderer: TemplateRenderer | None,
    *,
    control_texts: Callable[[str], frozenset[str]],
    extra: Mapping[str, object] | None = None,
    fold_system: bool = True,
) -> Prompt:
    """Prompt for the next answer; without a renderer, the contents as plain text to be continued.

    `control_texts` names the control-token texts that occur in a content: they stay text. A template that
    refuses or ignores a system message gets it in the first user turn, or with `fold_system` off ends in
    `UsageError`. Raises what `TemplateRenderer.render` raises.
    """
    source = renderer.source if renderer is not None else ""
    guard = MarkerGuard([source, *(text for m in messages for text in (m.content, m.reasoning))])
    guarded = [_protect(message, guard, control_texts) for message in messages]
    if renderer is None:
        return Prompt(guard.segments(plain_text(guarded)))
    style = reasoning_style(source)

    def render(these: Sequence[Message]) -> str:
        return renderer.render([_template_message(m, style) for m in these], extra=extra)

    rendered, folded = _render(guarded, render, fold_system=fold_system)
    opened = opened_reasoning(rendered, guarded)
    return Prompt(guard.segments(rendered), opened, folded)


def plain_text(messages: Sequence[Message]) -> str:
    """Contents alone, in no family's format; the system text as a paragraph before them.

    An answer continued the text before it, so nothing comes between the two; after it a line ends.
    """
    system = "".join(f"{m.content}\n\n" for m in messages if m.role == "system")
    turns = [m for m in messages if m.role != "system"]
    return system + "".join(f"{m.content}\n" if m.role == "assistant" else m.content for m in turns)


@lru_cache(maxsize=8)
def reasoning_style(source: str) -> ReasoningStyle:
    """Read from a template's source how it takes past reasoning.

    A message key it looks at comes first. Else, if it searches or splits a text by a closing marker, the
    block stays in the content. Else the answer stands alone.
    """
    for key in REASONING_KEYS:
        if re.search(rf"""\w\s*(?:\.{key}\b|\[\s*['"]{key}['"]|\.get\(\s*['"]{key}['"])""", source):
            return ReasoningStyle(key=key)
    for opening, closing in CLOSING.items():
        quoted = rf"""['"]{re.escape(closing)}['"]"""
        if re.search(rf"{quoted}\s+(?:not\s+)?in\b|split\(\s*{quoted}", source):
            return ReasoningStyle(markers=(opening, closing))
    return ReasoningStyle()


def opened_reasoning(rendered: str, messages: Sequence[Message]) -> str | None:
    """Opening marker of a reasoning block that `rendered` ends inside, unless a message wrote it."""
    text = rendered.rstrip()
    if messages and (last := messages[-1].content.rstrip()) and text.endswith(last):
        return None
    return next((opening for opening in CLOSING if text.endswith(opening)), None)


def _protect(message: Message, guard: MarkerGuard, control_texts: Callable[[str], frozenset[str]]) -> Message:
    return replace(
        message,
        content=guard.protect(message.content, control_texts(message.content)),
        reasoning=guard.protect(message.reasoning, control_texts(message.reasoning)),
    )


def _render(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str], *, fold_system: bool
) -> tuple[str, bool]:
    """Rendered text, and whether the system text had to be folded."""
    system = next((m.content for m in messages if m.role == "system"), "")
    if not system.strip():
        return render(_without_system(messages)), False
    refusal: TemplateRaised | None = None
    try:
        rendered = render(messages)
        if system.strip() in rendered or not _ignores_system(rendered, messages, render):
            return rendered, False
    except TemplateRaised as error:
        refusal = error
    # Before the system text is blamed: if the template refuses without it too, that is the error.
    folded = render(_fold(messages))
    if not fold_system:
        what = f'refuses the system message: "{refusal.reason}"' if refusal else "ignores the system message"
        raise UsageError(
            f"the chat template {what}",
            "leave it out, or let it lead the first user message (--fold-system)",
        ) from refusal
    return folded, True


def _ignores_system(
    rendered: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> bool:
    """True if the text is the same without the system message."""
    try:
        return rendered == render(_without_system(messages))
    except TemplateUnusable:
        return False


def _without_system(messages: Sequence[Message]) -> list[Message]:
    return [m for m in messages if m.role != "system"]


def _fold(messages: Sequence[Message]) -> list[Message]:
    """Put the system text in front of the first user turn."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    turns = _without_system(messages)
    first = next((i for i, m in enumerate(turns) if m.role == "user"), None)
    if first is None:
        return [Message("user", system), *turns]
    turns[first] = replace(turns[first], content=f"{system}\n\n{turns[first].content}")
    return turns


def _template_message(message: Message, style: ReasoningStyle) -> dict[str, object]:
    """A message as templates know it: role, content and perhaps the reasoning."""
    content = message.content
    if not message.reasoning:
        return {"role": message.role, "content": content}
    if style.key is not None:
        return {"role": message.role, "content": content, style.key: message.reasoning}
    if style.markers is not None:
        opening, closing = style.markers
        content = f"{opening}\n{message.reasoning}\n{closing}\n\n{content}"
    return {"role": message.role, "content": content}
