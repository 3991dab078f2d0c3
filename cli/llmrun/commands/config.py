"""`llmrun config`: effective settings and where each came from."""

from __future__ import annotations

import os
from typing import Annotated, Optional

import typer

from llmrun.commands.help_page import HelpCommand, HelpGroup
from llmrun.commands.options import takes_settings

config_app = typer.Typer(
    rich_markup_mode=None,
    cls=HelpGroup,
    help="Effective settings and where each came from.",
)


@config_app.command(cls=HelpCommand)
@takes_settings()
def show(
    *,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--profile", metavar="NAME", help="with this profile loaded"),
    ] = None,
    flags: dict[str, object],
) -> None:
    """Show every setting, its value, and the flag, variable or file that set it."""
    from llmrun.app.settings import SettingSources
    from llmrun.commands.prompt import system_text
    from llmrun.documents.requests import dump
    from llmrun.documents.tools import config_document
    from llmrun.ui.config_table import print_settings
    from llmrun.ui.streams import Streams

    streams = Streams.of_process()
    settings = SettingSources(system_text(flags), profile, os.environ).resolve()
    if json:
        streams.write_text(dump(config_document(settings.as_json(), settings.sources)))
    else:
        print_settings(streams, [(row.name, row.value, row.source) for row in settings.rows()])


@config_app.command(cls=HelpCommand)
def path() -> None:
    """Show where the user's own settings file and profiles, models, data and cache are."""
    from llmrun.config.dirs import user_cache_dir, user_config_file, user_data_dir
    from llmrun.config.resources import config_dir
    from llmrun.store.hf_cache import hub_cache_dir

    typer.echo(f"config   {user_config_file(os.environ)}")
    typer.echo(f"profiles {user_config_file(os.environ).parent / 'profiles'} and {config_dir()}")
    typer.echo(f"models   {hub_cache_dir()}")
    typer.echo(f"data     {user_data_dir(os.environ)}")
    typer.echo(f"cache    {user_cache_dir(os.environ)}")
