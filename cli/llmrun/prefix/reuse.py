"""How much of a prompt can be taken from a sequence that already holds tokens.

K and V of a position depend on the tokens before it alone (causal mask), so an equal prefix has equal
K/V and need not be evaluated again. Three things limit that. Sampling needs the logits of the last prompt
token, which no cache keeps, so at least one token is always evaluated. A pruned sliding-window cache only
holds positions from `pos_min` on, and the first new token still looks back over its whole window. A
recurrent state cannot go back at all.

Window rule, from the mask `p1 - p0 >= n_swa` in llama-hparams.h: after a rewind to P, position P needs
P - n_swa + 1 ... P - 1. Chunked attention (llama4) needs its chunk from floor(P / n_swa) * n_swa on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """What a model's memory can forget. `n_swa` is 0 when every layer keeps every position."""

    n_swa: int = 0
    chunked: bool = False
    recurrent: bool = False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, in tokens."""
    limit = min(len(a), len(b))
    if list(a[:limit]) == list(b[:limit]):  # the usual case, compared in C
        return limit
    return next(i for i in range(limit) if a[i] != b[i])


def usable_prefix(held: Sequence[int], prompt: Sequence[int], *, pos_min: int, kind: MemoryKind) -> int:
    """Tokens of `prompt` that need no evaluation on a sequence holding `held`.

    Args:
        pos_min: first position the sequence still has in all its layers.
    """
    keep = min(common_prefix(held, prompt), len(prompt) - 1)
    if keep <= 0:
        return 0
    if keep == len(held):
        return keep
    if kind.recurrent:
        return 0
    if kind.n_swa and pos_min > 0:
        oldest_needed = keep // kind.n_swa * kind.n_swa if kind.chunked else keep - kind.n_swa + 1
        return keep if pos_min <= oldest_needed else 0
    return keep


def saved_pos_min(length: int, pos_min: int, kind: MemoryKind) -> int:
    """First position in a copy of a sequence of `length` tokens that has `pos_min` itself.

    The library copies what the last token sees in its window and leaves out older positions, also of a cache
    that still has them (`is_masked_swa` in llama-kv-cache.cpp).
    """
    if not kind.n_swa or not length:
        return pos_min
    last = length - 1
    return max(pos_min, last // kind.n_swa * kind.n_swa if kind.chunked else last - kind.n_swa + 1)
