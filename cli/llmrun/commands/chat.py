"""`llmrun chat`: talk to a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from llmrun.commands.options import takes_settings
from llmrun.commands.run import Profile, Quiet, TemplateFile, Verbose
from llmrun.errors import Interrupted, PromptTooLong, TemplateUnusable, UsageError

if TYPE_CHECKING:
    from llmrun.app.chat import Chat
    from llmrun.app.worker import Stop
    from llmrun.events import Event
    from llmrun.ui.answer_view import ViewOptions
    from llmrun.ui.streams import Streams

RECOVERABLE = (PromptTooLong, TemplateUnusable, UsageError)
"""Failures of one message that leave the conversation as it was."""


@takes_settings()
def chat(
    *,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[MODEL]", help="path to a .gguf file, or a catalogue name"),
    ] = None,
    chat_template_file: TemplateFile = None,
    profile: Profile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    flags: dict[str, object],
) -> None:
    """Talk to a model; figures follow each answer. Ctrl-C stops an answer, Ctrl-D leaves.

    Without MODEL the configured one answers, else the small one that comes with llmrun. Text piped in is
    one message: its answer goes to stdout and the chat ends.
    """
    from llmrun.app.chat import Chat
    from llmrun.app.loading import OpenRequest
    from llmrun.app.settings import SettingSources
    from llmrun.app.worker import SigintStops, Stop
    from llmrun.commands.process import log_to_stderr
    from llmrun.commands.prompt import read_stdin, system_text
    from llmrun.commands.views import view_options
    from llmrun.metrics.clock import process_clock
    from llmrun.ui.streams import Streams

    if verbose:
        log_to_stderr()
    sources = SettingSources(system_text(flags), profile, os.environ)
    settings = sources.resolve()
    piped = read_stdin(sys.stdin)
    unset = settings.source("think") == "built-in"
    think = "dim" if piped is None and unset else settings.output.think
    streams = Streams.of_process()
    options = view_options(streams, think, settings.output.stats, False, quiet, verbose)
    stop = Stop()
    session = Chat(OpenRequest(model, sources, chat_template_file), process_clock(), stop)
    with closing(session), SigintStops(stop):
        if piped is not None:
            _answer_once(session, stop, streams, options, piped)
        else:
            _converse(session, stop, streams, options)


def _answer_once(session: Chat, stop: Stop, streams: Streams, options: ViewOptions, text: str) -> None:
    """All of standard input is one message."""
    from llmrun.app.prompt_input import join_prompt

    message = join_prompt([], [], text)
    _show(session.open(), stop, streams, options)
    if _show(session.say(message), stop, streams, options) == "interrupted":
        raise Interrupted("interrupted")


def _converse(session: Chat, stop: Stop, streams: Streams, options: ViewOptions) -> None:
    """Ask and answer until the user leaves."""
    from llmrun.ui.errors import print_error
    from llmrun.ui.line_editor import LineEditor

    _show(session.open(), stop, streams, options)
    editor = LineEditor()
    hinted = False
    while True:
        try:
            text = editor.read()
        except EOFError:
            return
        except KeyboardInterrupt:
            if hinted:
                raise Interrupted("interrupted") from None
            hinted = True
            streams.err.write("(Ctrl-C again, or Ctrl-D, leaves the chat)\n")
            continue
        hinted = False
        if not text.strip():
            continue
        try:
            _show(session.say(text), stop, streams, options)
        except RECOVERABLE as error:
            print_error(streams, error)


def _show(events: Iterator[Event], stop: Stop, streams: Streams, options: ViewOptions) -> str | None:
    """Show a use-case's events; the finish reason if it was an answer."""
    from llmrun.app.worker import in_worker
    from llmrun.ui.answer_view import AnswerView

    view = AnswerView(streams, options)
    with closing(in_worker(events, stop)) as shown:
        try:
            for event in shown:
                view.take(event)
        finally:
            view.close()
    return view.completion.finish_reason if view.completion else None
