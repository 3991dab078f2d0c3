"""The command line: one Typer application, one file a command.

A process runs one command, so only the module of that one is loaded; of the others help needs no more than a
name and a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from llmrun import __version__
from llmrun.commands.help_page import HelpCommand, HelpGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, "module:attribute" below `llmrun.commands`, and the first paragraph of its help."""

    target: str
    help: str
    group: bool = False

    def load(self) -> Any:
        """The command's function, or the Typer application of a group."""
        module, attribute = self.target.split(":")
        return getattr(import_module(f"llmrun.commands.{module}"), attribute)


COMMANDS = {
    "run": Entry("run:run", "Answer one prompt; the answer alone goes to stdout."),
    "chat": Entry(
        "chat:chat",
        "Talk to a model; figures follow each answer. /help lists commands, Ctrl-C stops, Ctrl-D leaves.",
    ),
    "pull": Entry(
        "pull:pull", "Fetch a model from the Hub into the Hugging Face cache, which other programs share."
    ),
    "list": Entry(
        "library:list_models", "List the models on this machine, whoever fetched them, without any network."
    ),
    "show": Entry("show:show", "Show what a model file holds, from its header alone: nothing is loaded."),
    "rm": Entry("library:rm", "Remove models from the Hugging Face cache, and say how much that frees."),
    "vram": Entry("vram:vram", "Show how much memory a model will take on each device, and what fits."),
    "bench": Entry(
        "bench:bench", "Measure how fast models read (prefill) and write (decode) on this machine."
    ),
    "estimate": Entry(
        "estimate:estimate",
        "Estimate how long a request takes: prompt / prefill rate + output / decode rate.",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Look at the engine, the machine and the settings, and say what to do about what is wrong.",
    ),
    "cache": Entry("cache:cache_app", "Prefixes of prompts that are kept on disk.", group=True),
    "config": Entry("config:config_app", "Effective settings and where each came from.", group=True),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmrun {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the program itself."""


def _placeholder() -> None:
    """Stands for a command that was not asked for."""


def asked_for(arguments: Iterable[str]) -> str:
    """The command that `arguments` name; empty for none. The program's own options take no values."""
    return next((word for word in arguments if not word.startswith("-")), "")


def make_app(loaded: Iterable[str] = COMMANDS) -> typer.Typer:
    """The application with the `loaded` commands, all by default; the others are known to help alone."""
    app = typer.Typer(
        name="llmrun",
        help="Run GGUF language models on this machine and see prefill, decode and the KV cache at work.",
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        cls=HelpGroup,
    )
    app.callback()(_root)
    chosen = set(loaded)
    for name, entry in COMMANDS.items():
        if entry.group:
            group = entry.load() if name in chosen else typer.Typer(help=entry.help)
            app.add_typer(group, name=name)
        elif name in chosen:
            app.command(name, cls=HelpCommand)(entry.load())
        else:
            app.command(name, help=entry.help)(_placeholder)
    return app
