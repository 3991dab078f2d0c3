"""Runs the Typer application with this program's exit codes instead of the parser's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer

from llmrun.app.memory.host_memory import share_one_heap
from llmrun.commands.main import COMMANDS, asked_for, make_app
from llmrun.commands.process import run_guarded
from llmrun.errors import UsageError

_COMPLETION = "_LLMRUN_COMPLETE"


def run_cli(arguments: Sequence[str]) -> int:
    """Exit status of the command line `arguments`."""
    status = 0
    share_one_heap()
    completing = _COMPLETION in os.environ  # a shell asks for words, of any command
    app = make_app(COMMANDS if completing else [asked_for(arguments)])

    def body() -> None:
        nonlocal status
        try:
            returned = app(args=list(arguments), prog_name="llmrun", standalone_mode=False)
        except typer.Abort as error:
            raise KeyboardInterrupt from error
        except typer.TyperException as error:
            raise _usage_error(error) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # Typer's own answer to it is status 1
                raise error.__context__ from None
            raise
        status = returned if isinstance(returned, int) else 0

    failed = run_guarded(body, arguments)
    return failed or status


def _usage_error(error: typer.TyperException) -> UsageError:
    """The parser's complaint as one of ours, with the usage of the command that was asked for."""
    said = error.format_message()
    message = f"{said[:1].lower()}{said[1:].rstrip('.')}"
    context = getattr(error, "ctx", None)
    if context is None:
        return UsageError(message, "see `llmrun --help`")
    usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
    return UsageError(message, f"usage: {usage}; `{context.command_path} --help` tells more")
