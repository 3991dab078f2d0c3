"""The loop of a chat on a terminal: read a line, do what it says, show what happens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from llmrun.commands.chat_commands import ALIASES, COMMANDS, FREE_TEXT, ChatCommands, Leave
from llmrun.commands.views import show_events
from llmrun.config.dirs import user_data_dir
from llmrun.config.kinds import Choice, Switch
from llmrun.config.schema import SETTINGS, Setting
from llmrun.errors import (
    DoesNotFit,
    Interrupted,
    ModelNotFound,
    NetworkFailure,
    NotAModel,
    PromptTooLong,
    TemplateUnusable,
    UsageError,
    WriteFailure,
)
from llmrun.ui.answer_view import AnswerView, ViewOptions
from llmrun.ui.completion import CompletionFacts, SettingFacts
from llmrun.ui.errors import print_error
from llmrun.ui.line_editor import LineEditor
from llmrun.ui.live_view import LiveView
from llmrun.ui.model_name import model_title
from llmrun.ui.notes import print_note
from llmrun.ui.prompt import LineDiscarded
from llmrun.ui.slash import Command, Message, Unknown, parse_line
from llmrun.ui.terminal_mode import input_quiet

if TYPE_CHECKING:
    from llmrun.app.chat import Chat
    from llmrun.app.worker import Stop
    from llmrun.events import Event
    from llmrun.journal.sessions import SessionStore
    from llmrun.ui.streams import Streams

WAYS_OUT = "/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves"

RECOVERABLE = (
    PromptTooLong, TemplateUnusable, UsageError, WriteFailure, ModelNotFound, NotAModel, DoesNotFit,
    NetworkFailure,
)  # fmt: skip
"""Failures of one line that leave the chat going."""


def completion_facts(store: SessionStore) -> CompletionFacts:
    """What Tab can offer."""
    return CompletionFacts(
        commands=COMMANDS,
        settings={s.name: SettingFacts(setting_words(s), s.help) for s in SETTINGS},
        models=_model_names,
        sessions=lambda: [summary.name for summary in store.list()],
    )


def _model_names() -> list[str]:
    """The catalogue's names, then what else is on this machine."""
    from llmrun.app.library.local import library
    from llmrun.store.catalogue import load_catalogue

    try:
        here = [model.name for model in library().models if model.name and model.complete]
        return list(dict.fromkeys([*load_catalogue(), *here]))
    except UsageError:  # a mistake in the user's file is reported where a name is looked up, not under Tab
        return []


def setting_words(setting: Setting) -> tuple[str, ...]:
    """The words a setting takes, none where it takes numbers or text."""
    if isinstance(setting.kind, Choice):
        return setting.kind.options
    return ("true", "false") if isinstance(setting.kind, Switch) else ()


Options = Callable[[], ViewOptions]


class Repl:
    """Reads and answers until the user leaves. `options` tells how to show things now."""

    def __init__(
        self,
        chat: Chat,
        stop: Stop,
        streams: Streams,
        store: SessionStore,
        options: Options,
        env: Mapping[str, str],
    ) -> None:
        self._chat = chat
        self._stop = stop
        self._streams = streams
        self._editor = LineEditor(user_data_dir(env) / "history", completion_facts(store))
        self._options = options
        self._commands = ChatCommands(chat, store, streams, self.show)

    def open(self) -> None:
        """Load the model, and meanwhile the line editor."""
        preparing = threading.Thread(target=self._editor.prepare, daemon=True)
        preparing.start()
        self.show(self._chat.open(welcome=True))
        preparing.join()
        for note in self._editor.take_notes():
            self._say(note)
        if not self._options().quiet:
            print_note(self._streams, WAYS_OUT)

    def run(self) -> None:
        """Talk until Ctrl-D or /exit.

        Raises:
            typer.Exit: Ctrl-C twice at an empty prompt, with status 130.
        """
        hinted = False
        while True:
            try:
                text = self._editor.read(self._commands.take_draft())
            except EOFError:
                return
            except LineDiscarded:
                hinted = False
                continue
            except KeyboardInterrupt:
                if hinted:
                    raise typer.Exit(Interrupted.exit_code) from None
                hinted = True
                self._say("(Ctrl-C again, or Ctrl-D, leaves the chat)")
                continue
            hinted = False
            try:
                self._take(text)
            except Leave:
                return
            except RECOVERABLE as error:
                print_error(self._streams, error)

    def _take(self, text: str) -> None:
        line = parse_line(text, (*COMMANDS, *ALIASES), FREE_TEXT)
        match line:
            case Unknown():
                raise UsageError(line.message, line.hint)
            case Command():
                self._commands.run(line.name, line.argument)
            case Message() if line.text.strip():
                self.show(self._chat.say(self._commands.with_files(line.text)))
            case _:
                pass

    def _say(self, text: str) -> None:
        self._raw(f"{text}\n")

    def _raw(self, text: str) -> None:
        self._streams.err.write(text)
        self._streams.err.flush()

    def show(self, events: Iterator[Event]) -> None:
        """Show what a use-case does, live where the terminal allows it."""
        options = self._options()
        live = self._streams.both_can_redraw
        view = LiveView(self._streams, options) if live else AnswerView(self._streams, options)
        if isinstance(view, LiveView) and self._chat.is_open:
            view.introduce(model_title(self._chat.model), self._chat.n_threads)
        paste_marks = self._raw if self._streams.err_can_redraw else None
        with input_quiet(sys.stdin.fileno(), paste_marks):
            show_events(events, self._stop, view)
