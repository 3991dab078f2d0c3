"""An answer on streams: text on stdout, everything else on stderr, colour and redrawing only where wanted."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping

import pytest

from llmrun.errors import UsageError
from llmrun.events import Event, Finished, LoadProgress, Notice, Token
from llmrun.ui import progress
from llmrun.ui.answer_view import AnswerView, ViewOptions
from llmrun.ui.errors import print_error
from llmrun.ui.json_view import JsonView
from llmrun.ui.streams import Streams

from tests.ui.test_panel import COMPLETION

TERMINAL = {"TERM": "xterm", "COLUMNS": "80"}
THOUGHT: list[Event] = [
    Token("plan", 1, "reasoning", 0.1),
    Token(" it", 1, "reasoning", 0.2),
    Token("Hello", 1, "answer", 0.3),
    Token("", 1, "answer", 0.4),
]


class Captured:
    """Two streams in memory."""

    def __init__(self, *, terminal: bool = False, env: Mapping[str, str] = TERMINAL) -> None:
        self._out, self._err = io.BytesIO(), io.StringIO()
        self.streams = Streams(self._out, self._err, terminal, terminal, env)

    @property
    def out(self) -> str:
        return self._out.getvalue().decode()

    @property
    def err(self) -> str:
        return self._err.getvalue()

    def show(self, events: list[Event], **options: object) -> None:
        view = AnswerView(self.streams, ViewOptions(**options))  # type: ignore[arg-type]
        for event in events:
            view.take(event)
        view.take(Finished(COMPLETION, 1.0))
        view.close()


class TestReasoning:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("think", "out", "err"),
        [("hide", "Hello", ""), ("dim", "Hello", "plan it\n\n"), ("show", "plan it\n\nHello", "")],
    )
    def test_goes_where_it_was_asked_to(self, think: str, out: str, err: str, stream: bool) -> None:
        captured = Captured()
        captured.show(THOUGHT, think=think, stream=stream)
        assert (captured.out, captured.err) == (out, err)


NOTES: list[Event] = [Notice("info", "note"), Notice("warning", "watch out")]


class TestNotices:
    def test_only_warnings_where_nobody_watches(self) -> None:
        captured = Captured()
        captured.show(NOTES)
        assert captured.err == "warning: watch out\n"

    def test_all_on_a_terminal_unless_quiet(self) -> None:
        for quiet in (False, True):
            captured = Captured(terminal=True, env={**TERMINAL, "NO_COLOR": "1"})
            captured.show(NOTES, quiet=quiet)
            assert ("note" in captured.err) is not quiet
            assert "watch out" in captured.err

    def test_verbose_shows_all_everywhere(self) -> None:
        captured = Captured()
        captured.show(NOTES, verbose=True)
        assert captured.err == "note\nwarning: watch out\n"

    def test_a_long_note_is_one_line_of_a_log(self) -> None:
        captured = Captured()
        captured.show([Notice("warning", "word " * 60 + "[/INST]")])
        assert captured.err.count("\n") == 1
        assert "[/INST]" in captured.err


def test_the_process_keeps_its_streams_while_a_bar_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat's line editor takes the terminal from them while the model loads, in another thread."""
    monkeypatch.setattr(progress, "FELT_S", 0.0)
    before, captured = (sys.stdout, sys.stderr), Captured(terminal=True)
    view = AnswerView(captured.streams, ViewOptions())
    view.take(LoadProgress(0.5))
    assert "loading" in captured.err
    assert (sys.stdout, sys.stderr) == before
    view.close()


class TestColour:
    def test_a_panel_on_a_terminal_has_some(self) -> None:
        captured = Captured(terminal=True)
        captured.show(THOUGHT, stats=True)
        assert "╭" in captured.err
        assert "\x1b[" in captured.err

    def test_none_is_left_when_it_is_refused(self) -> None:
        captured = Captured(terminal=True, env={**TERMINAL, "NO_COLOR": "1"})
        captured.show(THOUGHT, stats=True)
        assert "╭" not in captured.err
        assert "\x1b[3" not in captured.err
        assert "generation: 10.0 tok/s" in captured.err

    @pytest.mark.parametrize(("terminal", "env"), [(False, TERMINAL), (True, {"TERM": "dumb"})])
    def test_plain_lines_where_a_box_would_be_noise(self, terminal: bool, env: Mapping[str, str]) -> None:
        captured = Captured(terminal=terminal, env=env)
        captured.show(THOUGHT, stats=True)
        assert "╭" not in captured.err
        assert "\x1b" not in captured.err
        assert "generation: 10.0 tok/s" in captured.err


class TestTerminalText:
    def test_a_final_line_feed_is_added_once(self) -> None:
        for terminal, end in ((True, "\n"), (False, "")):
            captured = Captured(terminal=terminal)
            captured.show([Token("text", 1, "answer", 0.1)])
            assert captured.out == "text" + end

    @pytest.mark.parametrize("pieces", [["a\r\nb"], ["a\r", "\nb"], ["a", "\r", "\n", "b"]])
    def test_line_ends_cut_anywhere_look_the_same(self, pieces: list[str]) -> None:
        captured = Captured(terminal=True)
        captured.show([Token(piece, 1, "answer", 0.1) for piece in pieces])
        assert captured.out == "a\nb\n"

    def test_a_pipe_gets_the_bytes(self) -> None:
        captured = Captured()
        captured.show([Token("a\r\n\x1b[31m", 1, "answer", 0.1)])
        assert captured.out == "a\r\n\x1b[31m"


class TestErrors:
    def test_lines_and_document(self) -> None:
        captured = Captured()
        print_error(captured.streams, UsageError("what\nis \x1bwrong", "do [that]"), as_json=True)
        assert captured.err == "error: what is ␛wrong\n  do [that]\n"
        assert json.loads(captured.out)["message"] == "what\nis \x1bwrong"

    def test_red_only_on_a_terminal(self) -> None:
        for env, has in ((TERMINAL, True), ({**TERMINAL, "NO_COLOR": "1"}, False)):
            captured = Captured(terminal=True, env=env)
            print_error(captured.streams, UsageError("wrong"))
            assert ("\x1b[" in captured.err) is has


def test_json_mode_keeps_notes_off_stdout() -> None:
    captured = Captured()
    view = JsonView(captured.streams, lines=False)
    for event in (
        Notice("info", "note"),
        Notice("warning", "watch [out]\x1b"),
        *THOUGHT,
        Finished(COMPLETION, 1.0),
    ):
        view.take(event)
    assert json.loads(captured.out)["text"] == "text"
    assert captured.err == "warning: watch [out]␛\n"
