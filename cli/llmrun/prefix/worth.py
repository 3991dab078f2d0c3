"""Whether a prefix is worth keeping on disk: what a hit saves against what keeping and reading it costs.

All times are measured ones: of a token's evaluation in this request, of writing and reading in this folder.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SAVED_S = 0.25
"""A hit that saves less is hardly noticed, and would fill the folder with variants of one document."""

MOST_OVERHEAD = 0.03
"""Share of a request's time that keeping its prefix may add, should it never be asked for again."""

MOST_LEAVING_S = 1.0
"""How long the end of a chat may be held up to keep it for a resumption."""

FILE_S = 0.005
"""Opening, naming and bookkeeping of a file."""

UNKNOWN_BYTES_PER_S = 1e9
"""Taken for a disk that was not measured yet, a solid-state one: whoever asks twice should not have to ask a
third time, and what a slower one loses it loses once."""

HASHED_BYTES_PER_S = 1.5e9
"""Taken for SHA-256 that was not measured yet, on a processor with instructions for it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of keeping one snapshot. Sizes in bytes, speeds in bytes a second, 0 for not measured.

    `hashed_bytes` of the model have to be hashed first, since its digest is not known yet.
    """

    size_bytes: int
    hashed_bytes: int = 0
    write_speed: float = 0.0
    read_speed: float = 0.0
    hash_speed: float = 0.0

    @property
    def keep_s(self) -> float:
        """Time to write it, once."""
        write_s = self.size_bytes / (self.write_speed or UNKNOWN_BYTES_PER_S)
        return FILE_S + write_s + self.hashed_bytes / (self.hash_speed or HASHED_BYTES_PER_S)

    @property
    def read_s(self) -> float:
        """Time to read it, for each hit."""
        return FILE_S + self.size_bytes / (self.read_speed or UNKNOWN_BYTES_PER_S)


def pays(saved_s: float, cost: Cost, *, spent_s: float, leaving: bool = False) -> bool:
    """Whether to keep a prefix of which a hit would save `saved_s`.

    Args:
        spent_s: time of the requests since one was last kept.
        leaving: the conversation ends here, and keeping it now is the last chance.
    """
    if saved_s < max(LEAST_SAVED_S, cost.keep_s + cost.read_s):
        return False
    return cost.keep_s <= max(MOST_OVERHEAD * spent_s, MOST_LEAVING_S if leaving else 0.0)


def given_up_s(cost: Cost) -> float:
    """After how many seconds to give keeping a prefix up: it should have been done long before."""
    return 3.0 * cost.keep_s + MOST_LEAVING_S
