"""What `llmrun doctor` found out about this machine, as values: made by `app`, shown by `ui`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    `check` is its stable name, `text` what was found, `todo` what to do about it (empty: nothing), `data` the
    figures behind it as JSON holds them. `exit_code` counts where `level` is "fail": what a command that
    meets this would end with.
    """

    check: str
    level: Level
    text: str
    todo: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings, in the order they are shown."""

    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 when a model can run, else the code of the first thing that keeps it from running."""
        return next((found.exit_code for found in self.findings if found.level == "fail"), 0)
