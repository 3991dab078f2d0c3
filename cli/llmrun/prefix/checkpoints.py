"""Checkpoints: copies of the part of a memory that forgets, at places worth coming back to.

A recurrent state is overwritten by every token, and a pruned window loses the positions behind it. To
rewind such a sequence, the forgetting part is put back as it was at a checkpoint, while the attention layers
that keep every position are simply cut there. The restored sequence is what it was when the checkpoint was
taken, so that the rule of `prefix/reuse.py` holds for it with the checkpoint's own `pos_min`.

Places are those llama-server takes: before the last user message, and near the end of the prompt, once a
slice before (a template may change the end of a turn) and once the few tokens that open the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from llmrun.prefix.reuse import MemoryKind, common_prefix, usable_prefix

Handle = TypeVar("Handle")

ANSWER_OPENING = 4
"""Tokens at the end of a prompt that open the answer in most templates (llama-server's number)."""

MOST_CHECKPOINTS = 32
"""Checkpoints of one sequence (llama-server's number)."""


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[Handle]):
    """The forgetting part after the first `position` tokens; in it positions from `pos_min` on are left."""

    position: int
    pos_min: int
    size_bytes: int
    handle: Handle


@dataclass(frozen=True, slots=True)
class Way(Generic[Handle]):
    """How to reach a prefix of `tokens` tokens: rewind, or restore `checkpoint` first."""

    tokens: int
    checkpoint: Checkpoint[Handle] | None = None


def forgets(kind: MemoryKind) -> bool:
    """True for memories that cannot be rewound at will."""
    return kind.recurrent or kind.n_swa > 0


def marks(n_prompt: int, n_ubatch: int, cuts: Iterable[int], *, reused: int = 0) -> tuple[int, ...]:
    """Positions of a prompt of `n_prompt` tokens at which checkpoints are taken, in order.

    Args:
        cuts: further places: where the system text, a document or the history ends.
        reused: tokens that are not evaluated, so that nothing can be taken among them.
    """
    near_end = (n_prompt - ANSWER_OPENING - n_ubatch, n_prompt - ANSWER_OPENING)
    return tuple(sorted({p for p in (*cuts, *near_end) if reused < p < n_prompt}))


def best_way(
    held: Sequence[int],
    prompt: Sequence[int],
    *,
    pos_min: int,
    checkpoints: Iterable[Checkpoint[Handle]],
    kind: MemoryKind,
) -> Way[Handle]:
    """The way to the longest valid prefix of `prompt` on a sequence holding `held`; rewinding wins a tie.

    Args:
        pos_min: first position the sequence still has in all its layers.
        checkpoints: taken on this sequence, at positions whose tokens it still holds.
    """
    best: Way[Handle] = Way(usable_prefix(held, prompt, pos_min=pos_min, kind=kind))
    if not forgets(kind):
        return best
    for checkpoint in checkpoints:
        if checkpoint.position <= best.tokens:
            continue  # it leads no further
        then = held[: checkpoint.position]
        tokens = usable_prefix(then, prompt, pos_min=checkpoint.pos_min, kind=kind)
        if tokens > best.tokens:
            best = Way(tokens, checkpoint)
    return best


def still_valid(
    checkpoints: Iterable[Checkpoint[Handle]], held: Sequence[int], now: Sequence[int]
) -> list[Checkpoint[Handle]]:
    """Those taken on a sequence that held `held` whose tokens it still holds, now that it holds `now`."""
    common = common_prefix(held, now)
    return [checkpoint for checkpoint in checkpoints if checkpoint.position <= common]


def thinned(checkpoints: Iterable[Checkpoint[Handle]], budget_bytes: int) -> list[Checkpoint[Handle]]:
    """As many as the bounds allow, in order of position.

    The one goes whose absence costs least: without it, a rewind to it starts at the one before it.
    The newest stays as long as it alone fits.
    """
    kept = sorted(checkpoints, key=lambda checkpoint: checkpoint.position)
    while len(kept) > MOST_CHECKPOINTS or sum(c.size_bytes for c in kept) > budget_bytes:
        if len(kept) == 1:
            return []
        positions = [0, *(c.position for c in kept)]
        gaps = [after - before for before, after in pairwise(positions[:-1])]
        del kept[gaps.index(min(gaps))]
    return kept
