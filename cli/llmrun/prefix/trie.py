"""A radix tree over token sequences: which stored sequence shares the longest usable prefix with a prompt.

Sequences that begin alike share a path from the root, so one walk along a prompt meets every stored
sequence at the token where it parts from it. After D. R. Morrison, "PATRICIA" (JACM 15, 1968), over tokens
instead of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from llmrun.prefix.reuse import common_prefix

Handle = TypeVar("Handle")


@dataclass(slots=True)
class _Node(Generic[Handle]):
    """`label`: tokens on the edge to this node. `handles`: of sequences that end here."""

    label: tuple[int, ...] = ()
    children: dict[int, _Node[Handle]] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found(Generic[Handle]):
    """A stored sequence, of which the first `usable` tokens serve; `common` it shares with the prompt."""

    handle: Handle
    usable: int
    common: int


class PrefixTrie(Generic[Handle]):
    """Handles of stored sequences by their tokens. A handle is stored once; several may have equal tokens."""

    def __init__(self) -> None:
        self._root: _Node[Handle] = _Node()
        self._tokens: dict[Handle, tuple[int, ...]] = {}

    def insert(self, tokens: Sequence[int], handle: Handle) -> None:
        """Store `handle` under `tokens`, instead of where it was."""
        self.remove(handle)
        rest = self._tokens[handle] = tuple(tokens)
        node = self._root
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = _Node(rest, {}, [handle])
                return
            shared = common_prefix(child.label, rest)
            if shared < len(child.label):
                _split(node, child, shared)
                child = node.children[rest[0]]
            node, rest = child, rest[shared:]
        node.handles.append(handle)

    def remove(self, handle: Handle) -> None:
        """Forget `handle`; nothing happens if it is not stored."""
        tokens = self._tokens.pop(handle, None)
        if tokens is None:
            return
        path = [self._root]
        while tokens:
            child = path[-1].children[tokens[0]]
            tokens = tokens[len(child.label) :]
            path.append(child)
        path[-1].handles.remove(handle)
        for parent, node in zip(path[-2::-1], path[:0:-1], strict=True):
            if node.handles or node.children:
                break
            del parent.children[node.label[0]]

    def longest(self, tokens: Sequence[int], usable: Callable[[Handle, int], int]) -> Found[Handle] | None:
        """The sequence of which most tokens serve as a prefix of `tokens`, None if none serves.

        Args:
            usable: tokens of a stored sequence that serve, given how many it shares with `tokens`; never
                more than that.
        """
        best: Found[Handle] | None = None
        for common, handles in self._by_common(tuple(tokens)):
            if best is not None and best.usable >= common:
                break
            for handle in handles:
                count = usable(handle, common)
                if count > (best.usable if best else 0):
                    best = Found(handle, count, common)
        return best

    def _by_common(self, tokens: tuple[int, ...]) -> Iterator[tuple[int, list[Handle]]]:
        """All handles, grouped by the length they share with `tokens`, the longest first."""
        path: list[tuple[_Node[Handle], int]] = [(self._root, 0)]
        node, depth = self._root, 0
        while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
            shared = common_prefix(child.label, tokens[depth:])
            depth += shared
            path.append((child, depth))
            if shared < len(child.label):
                break
            node = child
        visited: _Node[Handle] | None = None
        for node, common in reversed(path):
            others = [child for child in node.children.values() if child is not visited]
            yield common, [*node.handles, *(h for child in others for h in _all_handles(child))]
            visited = node


def _split(parent: _Node[Handle], child: _Node[Handle], at: int) -> None:
    """Put a node into the edge to `child`, after `at` of its tokens."""
    upper: _Node[Handle] = _Node(child.label[:at])
    parent.children[upper.label[0]] = upper
    child.label = child.label[at:]
    upper.children[child.label[0]] = child


def _all_handles(node: _Node[Handle]) -> Iterator[Handle]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield from node.handles
        stack.extend(node.children.values())
