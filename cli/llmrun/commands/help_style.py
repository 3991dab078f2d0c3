"""How help is laid out: Typer's panels where they fit."""

from __future__ import annotations

import shutil
from typing import Literal

PANEL_COLUMNS = 80


def help_style() -> Literal["rich"] | None:
    """Panels need room for their columns; below that they cut flags short, where plain help wraps."""
    return "rich" if shutil.get_terminal_size().columns >= PANEL_COLUMNS else None
