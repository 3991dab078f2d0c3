"""Messages as values: who said what, and which part of an answer was reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `reasoning` is the thinking before `content`; `interrupted`: the answer was cut short."""

    role: Role
    content: str
    reasoning: str = ""
    interrupted: bool = False
