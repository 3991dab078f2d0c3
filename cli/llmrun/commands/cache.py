"""`llmrun cache`: prefixes kept on disk."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from llmrun.commands.help_page import HelpCommand, HelpGroup

cache_app = typer.Typer(
    rich_markup_mode=None,
    cls=HelpGroup,
    help="Prefixes of prompts that are kept on disk.",
)

Json = Annotated[bool, typer.Option("--json", help="one JSON document")]


@cache_app.command(cls=HelpCommand)
def ls(*, json: Json = False) -> None:
    """List what is kept, the last used first: model, tokens, size, last use, window."""
    from llmrun.app.prefixes.listing import list_prefixes
    from llmrun.app.settings import SettingSources
    from llmrun.documents.requests import dump
    from llmrun.documents.tools import cache_document
    from llmrun.ui.cache_view import print_cache
    from llmrun.ui.streams import Streams

    streams, report = Streams.of_process(), list_prefixes(SettingSources(env=os.environ))
    if json:
        streams.write_text(dump(cache_document(report)))
        return
    print_cache(streams, report)


@cache_app.command(cls=HelpCommand)
def clear(*, json: Json = False) -> None:
    """Remove all that is kept; later prompts are evaluated from their first token."""
    from llmrun.app.prefixes.listing import clear_prefixes, list_prefixes
    from llmrun.app.settings import SettingSources
    from llmrun.documents.requests import dump
    from llmrun.documents.tools import cache_document
    from llmrun.ui.streams import Streams
    from llmrun.units import format_bytes

    streams, sources = Streams.of_process(), SettingSources(env=os.environ)
    freed = clear_prefixes(sources)
    if json:
        streams.write_text(dump({**cache_document(list_prefixes(sources)), "freed_bytes": freed}))
        return
    streams.err.write(f"freed {format_bytes(freed)}\n")
