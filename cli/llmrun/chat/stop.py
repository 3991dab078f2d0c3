"""Stop strings over streamed text: the earliest match ends the text, nothing of it is ever shown."""

from __future__ import annotations

from collections.abc import Iterable

from llmrun.errors import UsageError


class StopMatcher:
    """Cuts a stream at the first place where any of `stops` begins, however the text was cut into pieces.

    Text that may still become a stop string is held back, so at most the longest stop string less one
    character is looked at again. Raises `UsageError` for an empty stop string.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise UsageError("a stop string is empty", "give --stop some text, or leave it out")
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True once a stop string has ended the text; what follows is ignored."""
        return self._stopped

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that is final now, and whether a stop string has ended it."""
        if self._stopped:
            return "", True
        held = self._held + text
        match = self._first_match(held)
        unfinished = self._first_unfinished(held)
        if match is not None and match <= unfinished:
            self._held, self._stopped = "", True
            return held[:match], True
        self._held = held[unfinished:]
        return held[:unfinished], False

    def finish(self) -> str:
        """What was held back and is final now that no more text comes."""
        held, self._held = self._held, ""
        match = self._first_match(held)
        if match is None:
            return held
        self._stopped = True
        return held[:match]

    def _first_match(self, text: str) -> int | None:
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _first_unfinished(self, text: str) -> int:
        """Where the first stop string begins that `text` ends inside of; its length if there is none."""
        first = len(text)
        for stop in self._stops:
            for place in range(max(0, len(text) - len(stop) + 1), first):
                if stop.startswith(text[place:]):
                    first = place
                    break
        return first
