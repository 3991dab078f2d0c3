"""Chooses how a request's events are shown."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from llmrun.app.settings import SettingSources
from llmrun.config.views import OutputSettings
from llmrun.ui.answer_view import AnswerView, ViewOptions
from llmrun.ui.json_view import JsonView
from llmrun.ui.streams import Streams

if TYPE_CHECKING:
    from llmrun.app.worker import Stop
    from llmrun.events import Event
    from llmrun.ui.estimate_view import EstimateProgress
    from llmrun.ui.live_view import LiveView


def show_events(
    events: Iterable[Event], stop: Stop, view: AnswerView | JsonView | LiveView | EstimateProgress
) -> None:
    """Run a use-case beside this thread and show its events; the view is left clean, also after an error.

    Raises what the use-case raises, and BrokenPipeError when whoever read stdout has gone.
    """
    from llmrun.app.worker import in_worker

    with closing(in_worker(events, stop, view.wants)) as shown:
        try:
            for event in shown:
                view.take(event)
        finally:
            view.close()


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
    return AnswerView(
        streams, view_options(streams, output, no_stream=no_stream, quiet=quiet, verbose=verbose)
    )


def view_options(
    streams: Streams,
    output: OutputSettings,
    *,
    no_stream: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> ViewOptions:
    """Display settings with "auto" decided by what the streams are."""
    both_terminals = streams.out_is_terminal and streams.err_is_terminal
    return ViewOptions(
        think=output.think,
        stats=output.stats == "on" or (output.stats == "auto" and both_terminals and not quiet),
        panel=output.panel,
        markdown=output.markdown,
        stream=not no_stream,
        quiet=quiet,
        verbose=verbose,
    )
