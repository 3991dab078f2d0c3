"""What each slash command of a chat does."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from llmrun.app.prompt_input import join_prompt, read_text_file, text_or_file
from llmrun.app.settings import setting_name
from llmrun.errors import Interrupted, UsageError
from llmrun.ui.cache_view import prefix_rows
from llmrun.ui.context_view import context_rows
from llmrun.ui.notes import print_note, print_rows
from llmrun.units import (
    format_bytes,
    format_count,
    format_counted,
    format_rate,
    format_seconds,
    format_tokens,
)

if TYPE_CHECKING:
    from llmrun.app.chat import Chat
    from llmrun.config.layers import Row
    from llmrun.events import Event
    from llmrun.journal.session import Session
    from llmrun.journal.sessions import SessionStore
    from llmrun.ui.streams import Streams

COMMANDS = {
    "help": "this list",
    "system": "show, or set with TEXT or @FILE, the system message; `/system none` takes it away",
    "set": "NAME VALUE: change a setting of /show; `default` takes the change back",
    "show": "the model and every setting with its source",
    "stats": "sums over this chat, by phase",
    "context": "what the context holds",
    "read": "FILE: give a text file to the model with the next message",
    "regen": "answer the last message again",
    "undo": "take back the last message and its answer",
    "edit": "take back the last message and put it on the prompt",
    "clear": "forget the conversation; the system message stays",
    "copy": "put the last answer on the clipboard, where the terminal allows it",
    "save": "NAME: keep the conversation as a session of that name",
    "load": "NAME: go on with a session",
    "model": "NAME: another model, the conversation stays; without NAME load this one again",
    "exit": "leave, like Ctrl-D",
}
ALIASES = {"?": "help", "quit": "exit", "bye": "exit"}
"""What other programs call some of them."""

FREE_TEXT = ("system",)
"""Commands whose argument may have several lines."""


class Leave(Exception):
    """The user wants to leave."""


class ChatCommands:
    """Runs commands on a chat. `show` shows the events of a use-case."""

    def __init__(
        self, chat: Chat, store: SessionStore, streams: Streams, show: Callable[[Iterator[Event]], None]
    ) -> None:
        self._chat = chat
        self._store = store
        self._streams = streams
        self._show = show
        self._draft = ""
        self._files: list[tuple[str, str]] = []
        self._handlers: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "system": self._system,
            "set": self._set,
            "show": self._show_settings,
            "stats": self._stats,
            "context": self._context,
            "read": self._read,
            "regen": lambda _: self._show(self._chat.regenerate()),
            "undo": self._undo,
            "edit": self._edit,
            "clear": self._clear,
            "copy": self._copy,
            "save": self._save,
            "load": self._load,
            "model": self._model,
            "exit": self._exit,
        }

    def run(self, name: str, argument: str) -> None:
        """Run the command `name`, which may be an alias.

        Raises:
            Leave: it was /exit.
            LlmrunError: it could not be done.
        """
        self._handlers[ALIASES.get(name, name)](argument)

    def take_draft(self) -> str:
        """What the next prompt begins with."""
        draft, self._draft = self._draft, ""
        return draft

    def with_files(self, text: str) -> str:
        """A message with the files of /read before it."""
        files, self._files = self._files, []
        return join_prompt(files, [text], None) if files else text

    def _note(self, text: str) -> None:
        print_note(self._streams, text)

    def _help(self, _: str) -> None:
        rows = [(f"/{name}", words) for name, words in COMMANDS.items()]
        keys = [
            ("Ctrl-C", "stop the answer; twice at an empty prompt leaves"),
            ('"""', "begin and end a message of several lines; a \\ at a line's end goes on, too"),
            ("Ctrl-X Ctrl-E", "write the message in $EDITOR"),
            ("//word", "send a message that begins with a slash"),
        ]
        print_rows(self._streams, [*rows, *keys])

    def _system(self, argument: str) -> None:
        session = self._chat.session
        if argument:
            text = "" if argument == "none" else text_or_file(argument)
            session.set_system(text)
        self._note(f"system: {session.system or 'none'}")

    def _set(self, argument: str) -> None:
        given, _, value = re.sub(r"^([^\s=]+)=", r"\1 ", argument).partition(" ")
        name, value = setting_name(given), value.strip()
        if not name:
            raise UsageError("/set takes a name and a value", "/show lists the settings")
        has_command = name in ("model", "system")
        needs_load = (bool(value) or has_command) and self._chat.change(name, value)
        row = next((row for row in self._chat.settings.rows() if row.name == name), None)
        if row is None and not value:
            raise UsageError(f"there is no setting {given}", "/show lists the settings")
        now = f"{name} = {self._value(row) if row else value}"
        self._note(f"{now}, once the model is loaded again (/model)" if needs_load else now)

    def _model(self, name: str) -> None:
        """Another model; one that is on the Hub alone is fetched first, if the user wants that."""
        if name:
            from llmrun.commands.pull_missing import ctrl_c_raises, ensure_here

            try:
                with ctrl_c_raises():
                    ensure_here(replace(self._chat.request, model=name), pull=False, quiet=False)
            except Interrupted as error:  # the chat goes on with the model it has
                return self._note(error.message)
        return self._show(self._chat.switch(name or None))

    def _show_settings(self, _: str) -> None:
        chat, model = self._chat, self._chat.model
        rows = [("model", f"{model.ref}  {model.quant}  {format_bytes(model.size_bytes)}  {model.path}")]
        for row in chat.settings.rows():
            if row.name == "system":
                rows.append((row.name, f"{chat.session.system or 'none'}  (/system)"))
            elif row.name != "model":
                rows.append((row.name, f"{self._value(row)}  ({row.source})"))
        print_rows(self._streams, rows)

    def _value(self, row: Row) -> str:
        """A setting's value; with the size of a context that grows."""
        if (row.name, row.value) == ("n_ctx", "auto"):
            return f"auto, {format_tokens(self._chat.kv.capacity_tokens)} now"
        return row.value

    def _stats(self, _: str) -> None:
        t = self._chat.totals
        rows = [
            ("answers", format_count(t.answers)),
            ("prefill", f"{format_tokens(t.prefill_tokens)} in {format_seconds(t.prefill_s)}"),
            ("", format_rate(t.prefill_rate)),
            ("decode", f"{format_tokens(t.generated_tokens)} in {format_seconds(t.generation_s)}"),
            ("", format_rate(t.generation_rate)),
            ("reused", f"{format_count(t.cached_tokens)} of {format_count(t.prompt_tokens)} prompt tokens"),
        ]
        print_rows(self._streams, rows)

    def _context(self, _: str) -> None:
        kv, session = self._chat.kv, self._chat.session
        rows = [("held", f"{format_count(kv.tokens)} of {format_count(kv.capacity_tokens)} tokens")]
        rows += [
            ("KV cache", f"{format_bytes(d.used_bytes)} of {format_bytes(d.allocated_bytes)} on {d.device}")
            for d in kv.devices
        ]
        turns, last = session.turns, self._chat.last
        if turns:
            use = None if last is None else last.context
            rows += context_rows(use, turns[-1].left_out, len(turns), turns[-1].summary)
        rows.append(("turns", format_count(len(turns))))
        rows.append(("session", session.name or "not saved"))
        if last is not None:
            rows += prefix_rows(last.prefix, last.stats.prompt_tokens)
        print_rows(self._streams, rows)

    def _read(self, argument: str) -> None:
        if not argument:
            raise UsageError("/read takes a file name")
        text = read_text_file(argument)
        self._files.append((argument, text))
        self._note(f"{argument}: {format_counted(len(text), 'character')} for the next message")

    def _undo(self, _: str) -> None:
        self._note(f"took back: {self._take_back()}")

    def _edit(self, _: str) -> None:
        self._draft = self._take_back()

    def _take_back(self) -> str:
        session = self._chat.session
        if not session.turns:
            raise UsageError("there is nothing to take back")
        return session.undo()[0].user

    def _clear(self, _: str) -> None:
        self._chat.session.clear()
        self._files.clear()
        self._note("the conversation is empty")

    def _copy(self, _: str) -> None:
        turns = self._chat.session.turns
        if not turns:
            raise UsageError("there is no answer yet")
        if not self._streams.err_can_redraw:
            raise UsageError("there is no clipboard without a terminal that knows control sequences")
        # OSC 52, which most terminals know
        self._streams.err.write(f"\x1b]52;c;{b64encode(turns[-1].answer.encode()).decode()}\x07")
        length = format_counted(len(turns[-1].answer), "character")
        self._note(f"{length} sent to the terminal's clipboard")

    def _save(self, argument: str) -> None:
        if not argument:
            raise UsageError("/save takes a name")
        path = self._store.save_as(self._chat.session, argument)
        self._note(f"saved as {argument}: {path}")

    def _load(self, argument: str) -> None:
        if not argument:
            raise UsageError("/load takes a name", "`llmrun chat --list-sessions` lists them")
        before = self._chat.session
        if self._store.is_open_in(before, argument):
            self._note(opened_note(before))
            return
        session = self._store.open(argument)
        self._chat.session = session
        self._note(opened_note(session))
        before.close()

    def _exit(self, _: str) -> None:
        raise Leave


def opened_note(session: Session) -> str:
    """What to tell of a session that was opened."""
    note = f"session {session.name or '(not saved)'}: {format_counted(len(session.turns), 'turn')}"
    if session.copied_from:
        note += f"; {session.copied_from} is open in another chat, this is a copy of it"
    if session.damaged_lines:
        damaged = session.damaged_lines
        left_out = "1 damaged line was" if damaged == 1 else f"{format_count(damaged)} damaged lines were"
        note += f"; {left_out} left out"
    return note
