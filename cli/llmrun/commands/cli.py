"""Runs the Typer application with this program's exit codes instead of the parser's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import typer

from llmrun.commands.main import COMMANDS, asked_for, make_app
from llmrun.commands.process import run_guarded, usage_error
from llmrun.errors import UsageError

_COMPLETION = "_LLMRUN_COMPLETE"


def run_cli(arguments: Sequence[str]) -> int:
    """Exit status of the command line `arguments`."""
    status = 0
    completing = _COMPLETION in os.environ  # a shell asks for words, of any command
    app = make_app(COMMANDS if completing else [asked_for(arguments)])

    def body() -> None:
        nonlocal status
        try:
            returned = app(args=list(arguments), prog_name="llmrun", standalone_mode=False)
        except typer.Abort as error:
            raise KeyboardInterrupt from error
        except typer.TyperException as error:
            if not error.format_message():  # nothing was asked, and Typer has shown the help
                status = UsageError.exit_code
                return
            raise usage_error(error.format_message()) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # Typer's own answer to it is status 1
                raise error.__context__ from None
            raise
        status = returned if isinstance(returned, int) else 0

    failed = run_guarded(body, arguments)
    return failed or status
