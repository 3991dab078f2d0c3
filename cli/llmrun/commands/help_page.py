"""How help is laid out: flags on the left, words on the right, a section for each panel of options.

Typer's own panels give the long, the short and the opposite spelling of a flag a column each, which leaves
the words 20 of 80 columns; and they load Rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from llmrun.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_NO_BRACES = str.maketrans("", "", "{}")


class HelpCommand(TyperCommand):
    """A command whose help has a section for each panel."""

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """MODEL instead of {MODEL}: what may be left out stands in brackets already."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write arguments and options."""
        _write_parameters(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group whose help has the whole first paragraph of each command's, and which shows it when nothing
    is asked."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Show the help, as for a usage error, where there are no words at all."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(UsageError.exit_code)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write options and commands."""
        rows = [(name, (command.help or "").split("\n\n")[0]) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        _write_parameters(self, ctx, formatter)


def _write_parameters(command: Command, ctx: Context, formatter: HelpFormatter) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:  # hidden
            continue
        name, words = record
        if isinstance(parameter, TyperArgument):
            name, title = name.split(" <")[0], "Arguments"  # the type is always text
        else:
            title = getattr(parameter, "rich_help_panel", None) or "Options"
        sections.setdefault(title, []).append((name, words))
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
