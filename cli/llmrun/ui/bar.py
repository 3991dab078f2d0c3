"""A share as a bar of characters."""

from __future__ import annotations

import math


def bar(share: float, cells: int) -> str:
    """`share` (0 to 1) of `cells`; anything above 0 shows."""
    filled = min(cells, math.ceil(share * cells))
    return "▕" + "█" * filled + "░" * (cells - filled) + "▏"
