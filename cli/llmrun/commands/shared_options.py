"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Profile = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--profile", metavar="NAME", help="settings from a named profile, see `config show`"),
]
TemplateFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--chat-template-file", metavar="FILE", help="use this Jinja template, not the model's"),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="show notes and the engine's log on stderr")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="no notes and no progress, only warnings")]
