"""What goes when a bound in bytes is exceeded: the least recently used first (LRU)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from llmrun.prefix.trie import Found, PrefixTrie

Handle = TypeVar("Handle")


def over_budget(entries: Iterable[tuple[Handle, int, float]], budget_bytes: int) -> list[Handle]:
    """Handles to remove so that the rest takes at most `budget_bytes`: the longest unused first.

    Args:
        entries: handle, size in bytes, and when it was last used (any rising number).
    """
    by_age = sorted(entries, key=lambda entry: entry[2])
    excess = sum(size for _, size, _ in by_age) - budget_bytes
    removed = []
    for handle, size, _ in by_age:
        if excess <= 0:
            break
        removed.append(handle)
        excess -= size
    return removed


class StateCache(Generic[Handle]):
    """States by their tokens, bounded in bytes; what was used longest ago makes room."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._trie: PrefixTrie[Handle] = PrefixTrie()
        self._entries: dict[Handle, tuple[int, int]] = {}  # size and when it was used
        self._uses = 0

    def insert(self, tokens: Sequence[int], handle: Handle, size_bytes: int) -> list[Handle]:
        """Keep a state; returns the handles that had to go, itself if it is larger than the bound."""
        if size_bytes > self.budget_bytes:
            self.remove(handle)
            return [handle]
        self._trie.insert(tokens, handle)
        self._uses += 1
        self._entries[handle] = (size_bytes, self._uses)
        evicted = over_budget(((h, size, use) for h, (size, use) in self._entries.items()), self.budget_bytes)
        for old in evicted:
            self.remove(old)
        return evicted

    def remove(self, handle: Handle) -> None:
        """Forget a state; nothing happens if it is not held."""
        self._trie.remove(handle)
        self._entries.pop(handle, None)

    def longest(self, tokens: Sequence[int], usable: Callable[[Handle, int], int]) -> Found[Handle] | None:
        """As `PrefixTrie.longest`."""
        return self._trie.longest(tokens, usable)

    def touch(self, handle: Handle) -> None:
        """The state was used just now."""
        self._uses += 1
        size, _ = self._entries[handle]
        self._entries[handle] = (size, self._uses)
