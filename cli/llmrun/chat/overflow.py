"""What a prompt is made of when the conversation has grown past the context.

A context of N positions holds prompt and answer together. When they no longer fit, something has to give, and
what must not give is clear: the system text comes first in every prompt, the newest message is whole, and
nothing is cut in the middle. So whole exchanges (a message and its answer) are left out, the oldest first.

How many matters as well. Leaving one out moves all that follows to other positions, so the K/V of the whole
rest has to be computed again. A policy that leaves out just enough does that on every turn from then on; one
that frees some headroom does it once in many turns. The rule: as few as needed to free the headroom too,
or, where not even all of them free it, as few as needed to fit.

The place where the kept part begins is a `Window`. It is remembered with each turn and goes back with it when
the turn is undone. While the context stays as it is the window moves forward only; in a larger one, messages
come back. The prompt is that of a fresh conversation of the kept messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from llmrun.chat.messages import Message

SUMMARY_HEAD = "The conversation so far, in short:"
SUMMARY_REQUEST = (
    "Summarize our conversation up to here in one short paragraph. Keep names, numbers, decisions and open "
    "questions. Write the summary only."
)

Exchange = tuple[Message, Message]
"""A message and its answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """The first `left_out` exchanges are not in the prompt; `summary` stands for them, empty for nothing."""

    left_out: int = 0
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that was said, and the message to be answered."""

    system: str
    exchanges: tuple[Exchange, ...]
    newest: Message

    def messages(self, window: Window = Window()) -> tuple[Message, ...]:
        """The messages of the prompt, as `window` has them."""
        system = self.system
        if window.summary:
            system = "\n\n".join(filter(None, (system, f"{SUMMARY_HEAD}\n{window.summary}")))
        head = (Message("system", system),) if system else ()
        kept = (message for pair in self.exchanges[window.left_out :] for message in pair)
        return (*head, *kept, self.newest)

    def to_summarize(self, left_out: int) -> Conversation:
        """The conversation that asks for a summary of the first `left_out` exchanges."""
        return Conversation(self.system, self.exchanges[:left_out], Message("user", SUMMARY_REQUEST))


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens: `capacity` positions for prompt and answer, `answer` of them wanted for the answer, `headroom`
    freed beyond what is needed whenever something is left out."""

    capacity: int
    answer: int
    headroom: int = 0


def widened(
    conversation: Conversation, window: Window, room: Room, count: Callable[[Sequence[Message]], int]
) -> Window:
    """`window` with the exchanges back that there is room for besides the headroom; most often as it is.

    It was made by the same rule and a conversation only becomes longer, so that nothing comes back before
    there is more room, and nothing goes to and fro. What a summary stands for comes back as a whole.
    """
    if not window.left_out:
        return window
    most = room.capacity - room.answer - room.headroom

    def fits(left_out: int) -> bool:
        return count(conversation.messages(Window(left_out))) <= most

    if window.summary:
        return Window() if fits(0) else window
    left_out = min(window.left_out, len(conversation.exchanges))
    if left_out == 0 or not fits(left_out - 1):
        return Window(left_out)
    found = _first(0, left_out - 1, fits)
    return Window(left_out if found is None else found)


def left_out_to_fit(
    conversation: Conversation, window: Window, room: Room, count: Callable[[Sequence[Message]], int]
) -> int:
    """How many exchanges the prompt has to leave out, `window.left_out` or more.

    `count` gives the tokens of the prompt for some messages; it is asked about log2 of the exchanges times.
    All of them are left out where not even that is enough: the caller refuses the prompt.
    """
    wanted = room.capacity - room.answer

    def fits(left_out: int, within: int) -> bool:
        return count(conversation.messages(Window(left_out, window.summary))) <= within

    if fits(window.left_out, wanted):
        return window.left_out
    for within in (wanted - room.headroom, wanted):
        found = _first(window.left_out + 1, len(conversation.exchanges), partial(fits, within=within))
        if found is not None:
            return found
    return len(conversation.exchanges)


def exchanges_that_fit(
    conversation: Conversation,
    window: Window,
    most: int,
    n_tokens: int,
    count: Callable[[Sequence[Message]], int],
) -> int:
    """Up to which exchange, at most `most`, a prompt of `n_tokens` can have those behind `window` summed up;
    `window.left_out` where not even one fits."""

    def too_long(end: int) -> bool:
        return count(conversation.to_summarize(end).messages(window)) > n_tokens

    found = _first(window.left_out + 1, most, too_long)
    return most if found is None else found - 1


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest number from `low` to `high` for which `holds`, which is never false after it was true."""
    if low > high or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
