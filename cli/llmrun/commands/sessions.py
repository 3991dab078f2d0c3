"""Chat sessions on the command line: which one to talk in, the list of them, exports."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from llmrun.commands.chat_commands import opened_note
from llmrun.config.dirs import user_data_dir
from llmrun.errors import LlmrunError, UsageError, WriteFailure
from llmrun.journal.session_export import write_export
from llmrun.journal.sessions import SessionStore
from llmrun.ui.notes import aligned, print_note
from llmrun.ui.visible import one_line

if TYPE_CHECKING:
    from llmrun.app.loading import OpenRequest
    from llmrun.app.worker import Stop
    from llmrun.journal.session import Session
    from llmrun.ui.streams import Streams

_FIRST_WORDS = 40


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """Which session to talk in: the last one, a named one, or (neither) a new one."""

    last: bool
    name: str | None
    save: bool


class Terminated(LlmrunError):
    """The process was asked to end; the status is 128 + the signal's number, as shells have it."""

    code = "terminated"
    exit_code = 128 + 15


class HungUp(Terminated):
    """The terminal was closed."""

    exit_code = 128 + 1


def session_store(env: Mapping[str, str]) -> SessionStore:
    """The sessions in the data folder."""
    return SessionStore(user_data_dir(env), lambda: datetime.now().astimezone())


def begin_session(
    store: SessionStore, request: OpenRequest, choice: SessionChoice, streams: Streams
) -> tuple[Session, OpenRequest]:
    """The session to talk in, and the request with the model it was held with unless another is named.

    Raises:
        UsageError: there is no such session, or it cannot be read.
    """
    from llmrun.app.loading import DEFAULT_MODEL
    from llmrun.store.resolve import lasting_ref

    name = choice.name
    if choice.last and name is None:
        name = store.last()
        if name is None:
            raise UsageError("there is no session to go on with", "`llmrun chat` begins one")
    settings = request.sources.resolve()
    system = settings.output.system or ""
    if name is None or not store.exists(name):
        model = lasting_ref(request.model or settings.context.model or DEFAULT_MODEL)
        if choice.save:
            try:
                return store.create(name, model=model, system=system), request
            except WriteFailure as error:  # a chat that cannot be kept is better than none
                if name is not None:
                    raise
                streams.err.write(f"warning: this chat is not saved: {one_line(error.message)}\n")
        return store.unsaved(model=model, system=system), request
    if choice.save:
        session = store.open(name)
    else:
        kept = store.read(name)
        session = store.unsaved(model=kept.model, system=kept.system, turns=kept.turns)
    if streams.err_is_terminal or session.copied_from or session.damaged_lines:
        print_note(streams, opened_note(session))
    if system:
        session.set_system(system)
    return session, replace(request, model=request.model or session.model or None)


def print_sessions(streams: Streams, store: SessionStore) -> None:
    """One line a session: name, date, turns, model, first words; the latest first.

    Fields are parted by tabs, on a terminal aligned, and models given by path without their folders.
    """
    rows = []
    for summary in store.list():
        date = summary.changed.astimezone().strftime("%Y-%m-%d %H:%M")
        model = os.path.basename(summary.model) if streams.out_is_terminal else summary.model
        words = one_line(summary.problem or summary.first_words)[:_FIRST_WORDS]
        rows.append((one_line(summary.name), date, str(summary.turns), one_line(model), words))
    lines = aligned(rows) if streams.out_is_terminal else ["\t".join(row) for row in rows]
    streams.write_text("".join(f"{line}\n" for line in lines))


def export_session(store: SessionStore, name: str | None, path: Path) -> None:
    """Write a session, by default the last one, to a Markdown or JSON file.

    Raises:
        UsageError: there is none, or the file's ending is unknown.
        WriteFailure: the file exists or cannot be written.
    """
    wanted = name or store.last()
    if wanted is None:
        raise UsageError("there is no session to export", "`llmrun chat` begins one")
    write_export(path, store.read(wanted))


@contextmanager
def ends_by_signal(stop: Stop) -> Iterator[None]:
    """While active, SIGTERM and a closed terminal (SIGHUP) stop the answer and leave the chat in order."""

    arrived: list[Terminated] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        stop.press()
        arrived.append(kinds[number](f"ended by {signal.Signals(number).name}"))
        raise SystemExit(arrived[0].exit_code)  # which no event loop takes for the failure of a callback

    kinds: dict[int, type[Terminated]] = {signal.SIGTERM: Terminated}
    if hasattr(signal, "SIGHUP"):
        kinds[signal.SIGHUP] = HungUp
    before = {number: signal.signal(number, leave) for number in kinds}
    try:
        yield
    except BaseException:
        if arrived:  # it cut something short, or the terminal that is to be tidied up is closed
            raise arrived[0] from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
