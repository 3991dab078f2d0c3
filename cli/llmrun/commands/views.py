"""Chooses how a request's events are shown."""

from __future__ import annotations

from llmrun.app.settings import SettingSources
from llmrun.ui.answer_view import AnswerView, ViewOptions
from llmrun.ui.json_view import JsonView
from llmrun.ui.streams import Streams


def make_view(
    sources: SettingSources,
    *,
    json: bool,
    lines: bool,
    no_stream: bool,
    quiet: bool,
    verbose: bool,
) -> AnswerView | JsonView:
    """The view for `llmrun run`; `lines` is --stream json.

    Raises:
        UsageError: a setting is wrong.
    """
    if verbose:
        from llmrun.commands.process import log_to_stderr

        log_to_stderr()
    streams = Streams.of_process()
    output = sources.resolve().output
    if json or lines:
        return JsonView(streams, lines=lines, verbose=verbose)
    return AnswerView(streams, view_options(streams, output.think, output.stats, no_stream, quiet, verbose))


def view_options(
    streams: Streams, think: str, stats: str, no_stream: bool, quiet: bool, verbose: bool
) -> ViewOptions:
    """Display settings with "auto" decided by what the streams are."""
    both_terminals = streams.out_is_terminal and streams.err_is_terminal
    return ViewOptions(
        think="show" if think == "show" else "dim" if think == "dim" else "hide",
        stats=stats == "on" or (stats == "auto" and both_terminals and not quiet),
        stream=not no_stream,
        quiet=quiet,
        verbose=verbose,
    )
