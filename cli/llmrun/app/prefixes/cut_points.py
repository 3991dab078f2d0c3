"""Natural places to cut a prompt: where another request is likely to part from this one.

The same system text is followed by another conversation, the same document by another question, the same
history by another message. A checkpoint there serves all of them, so these places are looked for in the
rendered text and carried over to tokens. A place that the template has made unrecognisable is left out:
nothing but speed depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llmrun.app.prompt_input import document_ends
from llmrun.chat.messages import Message


def cut_points(
    messages: Sequence[Message], text: str, tokens: Sequence[int], piece: Callable[[int], bytes], start: int
) -> tuple[int, ...]:
    """Positions beyond `start`, in order: the system text ends, the last message begins, its documents end.

    Args:
        text: what the messages were rendered to, and `tokens` those of it.
        piece: bytes of one token.
    """
    tails = sorted({len(text[place:].encode()) for place in _places(messages, text)}, reverse=True)
    found = []
    position, behind = len(tokens), 0
    while tails and position > start:
        position -= 1
        behind += len(piece(tokens[position]))
        while tails and behind >= tails[-1]:  # the token that a place falls into goes on after it
            tails.pop()
            found.append(position)
    return tuple(sorted(place for place in set(found) if place > start))


def _places(messages: Sequence[Message], text: str) -> Iterable[int]:
    """Places in the rendered text."""
    if not messages:
        return
    first, last = messages[0], messages[-1]
    system = first.content.strip() if first.role == "system" else ""
    if system and (begin := text.find(system)) >= 0:
        yield begin + len(system)
    begin = text.rfind(last.content.strip())
    if begin >= 0 and last.content.strip():
        yield begin
        for end in document_ends(last.content.strip()):
            yield begin + end
