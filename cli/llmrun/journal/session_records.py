"""The records of a session file, and the conversation they amount to (docs/reference/sessions.md).

This is event sourcing: the file keeps what happened, in order, and the conversation is what replaying it
gives. Records carry rising numbers, and those that change history name turns by number rather than by
position, so that a damaged line costs its own turn and never makes an `undo` hit another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast, get_args

from llmrun.errors import UsageError
from llmrun.events import FinishReason
from llmrun.gguf.text import printable
from llmrun.journal.lines import Record
from llmrun.journal.session_names import quoted

VERSION = 1
HEADER, TURN, UNDO, CLEAR, SYSTEM, MODEL = (
    f"llmrun.{kind}/{VERSION}" for kind in ("session", "turn", "undo", "clear", "system", "model")
)
_SCHEMA = re.compile(r"(llmrun\.(?:session|turn|undo|clear|system|model))/([1-9][0-9]{0,8})")
_REASONS = frozenset(get_args(FinishReason))


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer. `time` is when the answer ended, `usage` that of `llmrun.completion/1`.

    The first `left_out` turns were not in the prompt, since it would not have fitted the context; `summary`
    stood for them, empty for nothing.
    """

    user: str
    answer: str
    reasoning: str
    finish_reason: FinishReason
    model: str
    time: datetime
    usage: Mapping[str, object] | None = None
    left_out: int = 0
    summary: str = ""

    @property
    def interrupted(self) -> bool:
        """The user stopped the answer, so that it may end anywhere."""
        return self.finish_reason == "interrupted"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation at one moment. `damaged_lines` of its file could not be read and are left out."""

    name: str
    created: datetime
    model: str
    system: str
    turns: tuple[Turn, ...]
    damaged_lines: int = 0


class Damaged(Exception):
    """A record lacks a field or has one of another type."""


class History:
    """What the records so far amount to; `changed` is the time of the latest. Begins with the header.

    Raises Damaged if that is not a usable header.
    """

    def __init__(self, header: Record) -> None:
        if header.get("schema") != HEADER:
            raise Damaged
        self.created = self.changed = _time(header)
        self.name = _text(header, "name")
        self.model = _text(header, "model")
        self.system = _text(header, "system")
        self.last_number = _number(header, "number")
        self._turns: dict[int, Turn] = {}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Those that count, in order."""
        return tuple(self._turns.values())

    @property
    def turn_numbers(self) -> tuple[int, ...]:
        """The numbers of the same turns."""
        return tuple(self._turns)

    def apply(self, record: Record) -> None:
        """Take a further record; on Damaged nothing has changed."""
        schema, number, time = record["schema"], _number(record, "number"), _time(record)
        if schema == TURN:
            self._add(number, _turn(record, time), record.get("replaces"))
        elif schema == UNDO:
            first = _number(record, "first")
            self._turns = {at: turn for at, turn in self._turns.items() if at < first}
        elif schema == CLEAR:
            self._turns = {}
        elif schema == SYSTEM:
            self.system = _text(record, "system")
        elif schema == MODEL:
            self.model = _text(record, "model")
        else:
            raise Damaged
        self.changed = max(self.changed, time)
        self.last_number = max(self.last_number, number)

    def _add(self, number: int, turn: Turn, replaces: object) -> None:
        if isinstance(replaces, int):
            self._turns.pop(replaces, None)
        # numbers can repeat where two chats wrote at once, on a system without locks
        self._turns[max(number, self.last_number + 1)] = turn


def replay(name: str, records: Iterable[Record]) -> tuple[History, int]:
    """The history that `records` of session `name` give, and how many of them were damaged.

    Raises UsageError for what is not a session, or is one that a newer llmrun wrote.
    """
    known = iter(records)
    first = next(known, None)
    if first is None:
        raise _not_a_session(name, "it has no header")
    _refuse_unknown(name, first)
    try:
        history = History(first)
    except Damaged:
        raise _not_a_session(name, "it does not begin with a header") from None
    damaged, before = 0, first
    for record in known:
        _refuse_unknown(name, record)
        if record["schema"] == HEADER:
            raise _not_a_session(name, "it holds two headers")
        # the same record twice is a write that was repeated because its end was not seen
        if record != before:
            try:
                history.apply(record)
            except Damaged:
                damaged += 1
        before = record
    return history, damaged


def _refuse_unknown(name: str, record: Record) -> None:
    schema = str(record["schema"])
    parts = _SCHEMA.fullmatch(schema)
    if parts is None:
        raise UsageError(
            f"session {quoted(name)} holds a record of an unknown kind ({printable(schema, 40)})",
            "a newer llmrun may have written it; update llmrun, or start another session",
        )
    if int(parts[2]) > VERSION:
        raise UsageError(
            f"session {quoted(name)} is from a newer llmrun: it holds {schema}, and this one reads up to "
            f"{parts[1]}/{VERSION}",
            "update llmrun, or start another session",
        )


def _not_a_session(name: str, why: str) -> UsageError:
    return UsageError(f"the file of {quoted(name)} is not a session: {why}", "start another session")


# ---- writing ----------------------------------------------------------------------------------------------


def header_record(at: datetime, *, name: str, model: str, system: str) -> dict[str, object]:
    """The first record of a file."""
    return {**_head(HEADER, 0, at), "name": name, "model": well_formed(model), "system": well_formed(system)}


def turn_record(number: int, turn: Turn, replaces: int | None) -> dict[str, object]:
    """`replaces` is the number of the turn whose answer this one stands for."""
    return {
        **_head(TURN, number, turn.time),
        "user": well_formed(turn.user),
        "answer": well_formed(turn.answer),
        "reasoning": well_formed(turn.reasoning),
        "interrupted": turn.interrupted,
        "finish_reason": turn.finish_reason,
        "model": well_formed(turn.model),
        # a copy that is plain JSON, whatever kind of mapping came; refuses what JSON cannot hold
        "usage": json.loads(json.dumps(turn.usage, allow_nan=False, default=dict)),
        "replaces": replaces,
        "left_out": turn.left_out,
        "summary": well_formed(turn.summary),
    }


def undo_record(number: int, at: datetime, turns: int, first: int) -> dict[str, object]:
    """Takes back `turns` turns, the one numbered `first` and all after it."""
    return {**_head(UNDO, number, at), "turns": turns, "first": first}


def clear_record(number: int, at: datetime) -> dict[str, object]:
    """Takes back all turns."""
    return _head(CLEAR, number, at)


def system_record(number: int, at: datetime, system: str) -> dict[str, object]:
    """From here on this is the system text."""
    return {**_head(SYSTEM, number, at), "system": well_formed(system)}


def model_record(number: int, at: datetime, model: str) -> dict[str, object]:
    """From here on this model answers."""
    return {**_head(MODEL, number, at), "model": well_formed(model)}


def _head(schema: str, number: int, at: datetime) -> dict[str, object]:
    return {"schema": schema, "number": number, "time": time_text(at)}


def time_text(at: datetime) -> str:
    """UTC to the millisecond, as all of the program's records have it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def well_formed(text: str) -> str:
    """`text` with lone surrogates, bytes that a terminal sent and no encoding explains, as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ---- reading ----------------------------------------------------------------------------------------------


def _turn(record: Record, time: datetime) -> Turn:
    reason, usage = _text(record, "finish_reason"), record.get("usage")
    if reason not in _REASONS or not isinstance(usage, dict | None):
        raise Damaged
    return Turn(
        user=_text(record, "user"),
        answer=_text(record, "answer"),
        reasoning=_text(record, "reasoning"),
        finish_reason=cast(FinishReason, reason),
        model=_text(record, "model"),
        time=time,
        usage=usage,
        left_out=_number(record, "left_out") if "left_out" in record else 0,
        summary=_text(record, "summary") if "summary" in record else "",
    )


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise Damaged
    return well_formed(value)


def _number(record: Record, key: str) -> int:
    value = record.get(key)
    if type(value) is not int or value < 0:
        raise Damaged
    return value


def _time(record: Record) -> datetime:
    try:
        return datetime.fromisoformat(_text(record, "time")).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Damaged from None
