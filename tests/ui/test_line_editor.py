from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from llmrun.ui.completion import CompletionFacts
from llmrun.ui.line_editor import LineEditor

from tests.support.cli import Terminal
from tests.support.talk import PROMPT_ENDED

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from llmrun.ui.completion import CompletionFacts, SettingFacts
from llmrun.ui.line_editor import LineEditor
from llmrun.ui.prompt import LineDiscarded

def leave(*_):
    raise SystemExit(15)

signal.signal(signal.SIGTERM, leave)
facts = CompletionFacts(
    commands={"help": "list the commands", "model": "another model", "regen": "answer again"},
    models=lambda: ["smollm2-135m", "smollm2-360m", "gemma3-270m"],
)
editor = LineEditor(Path(sys.argv[1]), facts)
defaults = sys.argv[2:]
while True:
    try:
        text = editor.read(defaults.pop(0) if defaults else "")
        print("got", json.dumps(text), flush=True)
    except EOFError:
        print("left", flush=True)
        break
    except LineDiscarded:
        print("discarded", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    for note in editor.take_notes():
        print("note", note, flush=True)
"""
PROMPT = ">>>"
PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"
UP, ENTER, CTRL_C, CTRL_D, CTRL_E, CTRL_R, ALT_ENTER = (
    "\x1b[A",
    "\r",
    "\x03",
    "\x04",
    "\x05",
    "\x12",
    "\x1b\r",
)


class Chat:
    """An editor on a pseudo-terminal, asked again and again."""

    def __init__(
        self,
        folder: Path,
        *defaults: str,
        columns: int = 80,
        lines: int = 24,
        out: IO[bytes] | None = None,
        **env: str,
    ) -> None:
        self.history = folder / "data" / "history"
        command: list[str | bytes] = [sys.executable, "-c", DRIVER, str(self.history), *defaults]
        self.terminal = Terminal(
            command, {"TERM": "xterm", "LC_ALL": "C.UTF-8", **env}, folder, columns, lines, out, None
        )
        self._place = 0
        self.expect(PROMPT)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.__exit__()

    def expect(self, mark: str) -> None:
        """Wait until the terminal shows `mark` after what was waited for before."""
        self._place = self.terminal.wait_for(mark, after=self._place)

    def sends(self, keys: str) -> str:
        """Press keys; the message they send."""
        self.terminal.send(keys)
        self.expect("got ")
        end = self.terminal.wait_for("\n", after=self._place)
        message = json.loads(self.terminal.text[self._place : end])
        self._place = end
        self.expect(PROMPT)
        assert isinstance(message, str)
        return message

    def types(self, keys: str, *lines: str) -> None:
        """Press keys and wait until the screen shows these lines, spaces around them aside."""
        self.terminal.send(keys)
        wanted = {line.strip() for line in lines}
        self.terminal.wait_until(
            lambda: wanted <= {line.strip() for line in self.terminal.display}, f"{wanted}"
        )

    def leave(self) -> None:
        """Ctrl-D ends it, and the terminal is as before."""
        self.terminal.send(CTRL_D)
        assert self.terminal.ended() == 0
        assert self.terminal.text.endswith("left\n")
        assert self.terminal.modes == self.terminal.modes_before


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with Chat(tmp_path) as chat:
        yield chat


def test_lines_are_continued_by_a_backslash_or_in_a_block(chat: Chat) -> None:
    assert chat.sends("hello" + ENTER) == "hello"
    assert chat.sends("one\\" + ENTER + "two" + ENTER) == "one\ntwo"
    assert "... two" in chat.terminal.display
    assert chat.sends("C:\\\\" + ENTER) == "C:\\\\"
    assert chat.sends('"""one' + ENTER + "two\\" + ENTER + '"""' + ENTER) == "one\ntwo\\"
    assert chat.sends("one" + ALT_ENTER + "two" + ENTER) == "one\ntwo"
    chat.leave()


def test_a_pasted_page_is_one_message_with_nothing_cut(chat: Chat) -> None:
    page = "".join(f"  line {i}:\t日本 é\n\n" for i in range(300)) + "end\\"
    assert chat.sends(PASTE + page.replace("\n", "\r") + END_PASTE + ENTER) == page
    docstring = '"""A docstring."""'
    assert chat.sends(PASTE + docstring + END_PASTE + ENTER) == docstring
    open_quotes = '"""\nopen\\'
    assert chat.sends(PASTE + open_quotes.replace("\n", "\r\n") + END_PASTE + ENTER) == open_quotes
    # pasted into a typed block, quotes at the end do not close it
    keys = '"""' + ENTER + PASTE + docstring + END_PASTE + ENTER + '"""' + ENTER
    assert chat.sends(keys) == docstring
    keys = PASTE + '"""a' + END_PASTE + " " + PASTE + "b" + END_PASTE + ' """' + ENTER
    assert chat.sends(keys) == '"""a b """'
    assert chat.sends("see: " + PASTE + "a\rb" + END_PASTE + "!" + ENTER) == "see: a\nb!"
    chat.leave()


def test_history_lasts_across_processes_and_is_searched(tmp_path: Path) -> None:
    with Chat(tmp_path) as chat:
        chat.sends("first question" + ENTER)
        chat.sends("two\\" + ENTER + "lines" + ENTER)
        chat.sends(PASTE + '"""quoted"""' + END_PASTE + ENTER)
        chat.leave()
    with Chat(tmp_path) as chat:
        assert chat.sends(UP + ENTER) == '"""quoted"""'
        assert chat.sends(UP + UP + ENTER) == "two\nlines"
        assert chat.sends(CTRL_R + "quest" + ENTER + CTRL_E + " again" + ENTER) == "first question again"
        chat.leave()


def test_a_damaged_history_is_a_note(tmp_path: Path) -> None:
    history = tmp_path / "data" / "history"
    history.parent.mkdir()
    history.write_bytes(b"\xff\x00\n")
    with Chat(tmp_path) as chat:
        chat.terminal.send("hello" + ENTER)
        chat.expect("note")
        chat.expect(PROMPT)
        chat.leave()


def test_control_characters_in_the_history_do_nothing(tmp_path: Path) -> None:
    history = tmp_path / "data" / "history"
    history.parent.mkdir()
    evil = "a\x1b]0;title\x07\x9b2J\rb"
    history.write_text(json.dumps({"schema": "llmrun.input/1", "text": evil}) + "\n")
    with Chat(tmp_path) as chat:
        assert chat.sends(UP + ENTER) == evil
        assert b"\x1b]0;title" not in chat.terminal.raw
        assert "\x9b" not in chat.terminal.raw.decode()


def test_tab_completes_and_shows_what_there_is(chat: Chat) -> None:
    chat.types("/reg\t", ">>> /regen")
    assert chat.sends(ENTER) == "/regen"
    chat.types("/model gem\t", ">>> /model gemma3-270m")
    assert chat.sends(ENTER) == "/model gemma3-270m"
    chat.types("/\t", "/help   list the commands", "/model  another model", "/regen  answer again")
    chat.types("\t\t", ">>> /model")
    # Enter takes the choice and closes the menu, another one sends
    chat.types(ENTER + "smo\t", ">>> /model smollm2-", "smollm2-360m")
    assert chat.sends("\t" + ENTER + ENTER) == "/model smollm2-135m"
    chat.leave()


def test_the_menu_finds_room_at_the_end_of_the_screen(tmp_path: Path) -> None:
    with Chat(tmp_path, columns=30, lines=8) as chat:
        for number in range(8):
            chat.sends(f"{number}{ENTER}")
        chat.types("/\t", "/help   list the commands", ">>> /")
        chat.terminal.send(CTRL_C)
        chat.expect("discarded")
        shown = [line for line in chat.terminal.display if line.startswith("got")]
        assert shown == [f'got "{number}"' for number in range(8)]


def test_the_prompt_is_drawn_on_stderr(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+b") as out, Chat(tmp_path, out=out) as chat:
        chat.terminal.send("hello" + ENTER)
        chat.terminal.wait_until(lambda: PROMPT_ENDED in chat.terminal.raw, "end of the prompt")
        chat.terminal.wait_for_prompt()
        chat.terminal.send(CTRL_D)
        assert chat.terminal.ended() == 0
        assert ">>> hello" in chat.terminal.display
    assert (tmp_path / "out").read_bytes() == b'got "hello"\nleft\n'


def test_ctrl_c_tells_a_discarded_line_from_an_empty_one(chat: Chat) -> None:
    chat.terminal.send("half a tho" + CTRL_C)
    chat.expect("discarded")
    chat.expect(PROMPT)
    chat.terminal.send(CTRL_C)
    chat.expect("interrupted")
    chat.expect(PROMPT)
    assert chat.sends("x" + CTRL_D + ENTER) == "x"
    chat.leave()


def test_a_default_is_edited_and_sent_as_it_is(tmp_path: Path) -> None:
    with Chat(tmp_path, "one\ntwo", '"""x\\') as chat:
        assert chat.sends("!" + ENTER) == "one\ntwo!"
        assert chat.sends(ENTER) == '"""x\\'


def test_the_editor_gets_the_draft_and_gives_its_text(tmp_path: Path) -> None:
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\nprintf \'"""\\n%s\\n\' "$(cat "$1") edited" > "$1"\n')
    editor.chmod(0o700)
    with Chat(tmp_path, VISUAL=f"'{editor}'", PATH="/usr/bin:/bin") as chat:
        chat.terminal.send("draft\x18\x05")
        chat.expect("draft edited")
        assert chat.sends(ENTER) == '"""\ndraft edited'


def test_the_terminal_is_asked_nothing_whose_answer_could_come_late(chat: Chat) -> None:
    chat.sends("hello" + ENTER)
    chat.leave()
    assert b"\x1b[6n" not in chat.terminal.raw


def test_typed_ahead_lines_are_separate_messages(chat: Chat) -> None:
    assert chat.sends("one\rtwo\r") == "one"
    assert chat.sends("") == "two"


def test_bytes_that_are_no_text_become_valid_text(chat: Chat) -> None:
    chat.terminal.send(b"a\xff")
    assert chat.sends("b" + ENTER) == "a\ufffdb"


def test_a_termination_signal_leaves_the_terminal_as_it_was(chat: Chat) -> None:
    chat.terminal._process.terminate()
    assert chat.terminal.ended() == 15
    assert chat.terminal.modes == chat.terminal.modes_before


def test_a_long_line_wraps_without_marks_between_the_words(tmp_path: Path) -> None:
    with Chat(tmp_path, columns=20) as chat:
        chat.sends("word " * 10 + ENTER)
        shown = "".join(line.ljust(20) for line in chat.terminal.display)
        assert ">>> " + "word " * 10 in shown


def plain_editor(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[LineEditor, io.StringIO]:
    """An editor that reads `text` from a pipe, and what it writes on stderr."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    monkeypatch.setattr(sys, "stderr", err)
    return LineEditor(None, CompletionFacts()), err


def test_without_a_terminal_plain_lines_follow_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'hello\none\\\ntwo\n"""\nthree\\\n\nfour\n"""\ncrlf\r\n\nlast'
    editor, err = plain_editor(text, monkeypatch)
    assert [editor.read() for _ in range(5)] == ["hello", "one\ntwo", "three\\\n\nfour", "crlf", ""]
    assert editor.read() == "last"
    with pytest.raises(EOFError):
        editor.read()
    assert err.getvalue().startswith(">>> >>> ... >>> ... ")


@pytest.mark.parametrize(("text", "message"), [('"""half\n', '"""half'), ("half\\\n", "half\n")])
def test_an_end_within_a_message_sends_what_there_is(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor, _ = plain_editor(text, monkeypatch)
    assert editor.read() == message
    with pytest.raises(EOFError):
        editor.read()


def test_plain_input_shows_a_default_and_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    editor, err = plain_editor("\nother\n", monkeypatch)
    assert editor.read("first\nsecond\x1b[2J") == "first\nsecond\x1b[2J"
    assert "\x1b" not in err.getvalue()
    assert editor.read("first") == "other"


def test_a_dumb_terminal_gets_no_control_sequences(tmp_path: Path) -> None:
    with Chat(tmp_path, TERM="dumb") as chat:
        assert chat.sends("hello\\\nthere\n") == "hello\nthere"
        assert b"\x1b" not in chat.terminal.raw


def test_plain_input_does_not_load_the_editor() -> None:
    code = """
import sys
from llmrun.ui.completion import CompletionFacts
from llmrun.ui.line_editor import LineEditor
assert LineEditor(None, CompletionFacts()).read() == "x"
assert "prompt_toolkit" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, input=b"x\n", capture_output=True)
