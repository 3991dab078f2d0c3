"""`llmrun chat`: talk to a model."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from llmrun.commands.memory_options import DEFAULT_RESERVE, Force, PlanReserve, PresentDevice, budget_of
from llmrun.commands.options import takes_settings
from llmrun.commands.pull_missing import PullFlag
from llmrun.commands.shared_options import Profile, Quiet, TemplateFile, Verbose
from llmrun.errors import Interrupted, LlmrunError, UsageError

if TYPE_CHECKING:
    from llmrun.app.loading import OpenRequest
    from llmrun.commands.sessions import SessionChoice
    from llmrun.journal.session import Session
    from llmrun.journal.sessions import SessionStore
    from llmrun.ui.answer_view import ViewOptions
    from llmrun.ui.streams import Streams


@takes_settings()
def chat(
    *,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="MODEL", help="path to a .gguf file, user/repo:QUANT, or a catalogue name"),
    ] = None,
    continue_: Annotated[bool, typer.Option("--continue", help="go on with the last session")] = False,
    session: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--session", metavar="NAME", help="go on with this session, or begin it"),
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="keep nothing of this chat")] = False,
    list_sessions: Annotated[bool, typer.Option("--list-sessions", help="list them and exit")] = False,
    export: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--export", metavar="FILE", help="write the session to FILE.md or FILE.json and exit"),
    ] = None,
    chat_template_file: TemplateFile = None,
    device: PresentDevice = None,
    reserve: PlanReserve = DEFAULT_RESERVE,
    force: Force = False,
    pull: PullFlag = False,
    profile: Profile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    flags: dict[str, object],
) -> None:
    """Talk to a model; figures follow each answer. /help lists commands, Ctrl-C stops, Ctrl-D leaves.

    Without MODEL the configured one answers, else the small one that comes with llmrun. Text piped in is
    one message: its answer goes to stdout and the chat ends. Every turn is kept as it ends, that of a piped
    message only with --continue or --session.
    """
    from llmrun.app.loading import OpenRequest
    from llmrun.app.settings import SettingSources
    from llmrun.commands.process import log_to_stderr
    from llmrun.commands.prompt import read_stdin, system_text
    from llmrun.commands.pull_missing import ensure_here
    from llmrun.commands.sessions import SessionChoice, export_session, print_sessions, session_store
    from llmrun.ui.streams import Streams

    if verbose:
        log_to_stderr()
    streams, store = Streams.of_process(), session_store(os.environ)
    if list_sessions:
        print_sessions(streams, store)
        return
    if export is not None:
        export_session(store, session, export)
        return
    sources = SettingSources(system_text(flags), profile, os.environ)
    budget = budget_of(device, reserve, force=force)
    request = OpenRequest(model, sources, chat_template_file, budget=budget, keeps_prefixes=not no_save)
    piped = read_stdin(sys.stdin)
    if model or not (continue_ or session):  # else the session names the model
        ensure_here(request, pull=pull, quiet=quiet)
    choice = SessionChoice(continue_, session, not no_save)
    if piped is not None:
        _answer_once(request, store, streams, choice, piped, pull=pull, quiet=quiet, verbose=verbose)
        return
    _converse(request, store, streams, choice, pull=pull, quiet=quiet, verbose=verbose)


def _begin(
    store: SessionStore,
    request: OpenRequest,
    choice: SessionChoice,
    streams: Streams,
    *,
    pull: bool,
    quiet: bool,
) -> tuple[Session, OpenRequest]:
    """The session, and the request with its model, which is fetched where it is wanted and not here."""
    from llmrun.commands.pull_missing import ensure_here
    from llmrun.commands.sessions import begin_session

    session, request = begin_session(store, request, choice, streams)
    if choice.name or choice.last:
        try:
            ensure_here(request, pull=pull, quiet=quiet)
        except LlmrunError:
            session.close()
            raise
    return session, request


def _answer_once(
    request: OpenRequest,
    store: SessionStore,
    streams: Streams,
    choice: SessionChoice,
    text: str,
    *,
    pull: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """All of standard input is one message; nothing is kept unless a session was named."""
    from llmrun.app.chat import Chat
    from llmrun.app.prompt_input import join_prompt
    from llmrun.app.worker import SigintStops, Stop
    from llmrun.commands.sessions import ends_by_signal
    from llmrun.commands.views import show_events, view_options
    from llmrun.metrics.clock import process_clock
    from llmrun.ui.answer_view import AnswerView

    if not text.strip():
        raise UsageError("standard input is empty", "pipe a message in, or chat on a terminal")
    message = join_prompt([], [], text)
    output = request.sources.resolve().output
    view = AnswerView(streams, view_options(streams, output, quiet=quiet, verbose=verbose))
    stop = Stop()
    if not (choice.last or choice.name):
        choice = replace(choice, save=False)
    session, request = _begin(store, request, choice, streams, pull=pull, quiet=quiet)
    talk = Chat(request, session, process_clock(), stop)
    with closing(talk), SigintStops(stop), ends_by_signal(stop):
        for events in (talk.open(), talk.say(message, last=True)):
            show_events(events, stop, view)
    if view.completion is not None and view.completion.finish_reason == "interrupted":
        raise Interrupted("interrupted")


def _converse(
    request: OpenRequest,
    store: SessionStore,
    streams: Streams,
    choice: SessionChoice,
    *,
    pull: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Ask and answer until the user leaves."""
    from llmrun.app.chat import Chat
    from llmrun.app.worker import SigintStops, Stop
    from llmrun.commands.chat_repl import Repl
    from llmrun.commands.sessions import ends_by_signal
    from llmrun.metrics.clock import process_clock

    session, request = _begin(store, request, choice, streams, pull=pull, quiet=quiet)
    stop = Stop()
    talk = Chat(request, session, process_clock(), stop, watched=streams.both_can_redraw)

    def options() -> ViewOptions:
        from llmrun.commands.views import view_options

        settings = talk.settings if talk.is_open else request.sources.resolve()
        output = settings.output
        if settings.source("think") == "built-in":
            output = replace(output, think="dim")
        return view_options(streams, output, quiet=quiet, verbose=verbose)

    repl = Repl(talk, stop, streams, store, options, os.environ)
    with closing(talk), SigintStops(stop), ends_by_signal(stop):
        repl.open()
        repl.run()
