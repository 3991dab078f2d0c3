"""The command line: one Typer application, one file a command."""

from __future__ import annotations

from typing import Annotated

import typer

from llmrun import __version__
from llmrun.commands.bench import bench
from llmrun.commands.cache import cache_app
from llmrun.commands.chat import chat
from llmrun.commands.config import config_app
from llmrun.commands.doctor import doctor
from llmrun.commands.estimate import estimate
from llmrun.commands.library import list_models, rm
from llmrun.commands.pull import pull
from llmrun.commands.run import run
from llmrun.commands.show import show
from llmrun.commands.vram import vram

app = typer.Typer(
    name="llmrun",
    help="Run GGUF language models on this machine and see prefill, decode and the KV cache at work.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmrun {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the program itself."""


app.command()(run)
app.command()(chat)
app.command()(pull)
app.command("list")(list_models)
app.command()(show)
app.command()(rm)
app.command()(vram)
app.command()(bench)
app.command()(estimate)
app.command()(doctor)
app.add_typer(cache_app, name="cache")
app.add_typer(config_app, name="config")
