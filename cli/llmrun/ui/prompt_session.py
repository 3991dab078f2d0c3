"""The prompt on a terminal that can redraw lines, by prompt_toolkit. Importing this module imports that.

Enter sends what was typed unless it asks for a further line. Text that nobody typed (pasted, recalled from
the history, handed back by an editor) is sent as it is, so that a pasted page keeps its last backslash and
its triple quotes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus, has_selection
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output

from llmrun.ui.completion import CompletionFacts, suggestions
from llmrun.ui.history_file import HistoryFile
from llmrun.ui.multiline import (
    block_is_open,
    block_message,
    ends_in_backslash,
    opens_block,
    without_backslash,
)
from llmrun.ui.prompt import CONTINUATION, PROMPT, LineDiscarded


class EditedPrompt:
    """One prompt after another, with a history and completion."""

    def __init__(self, history: HistoryFile | None, facts: CompletionFacts) -> None:
        self._history = _FileHistory(history)
        self._given = ""
        self._quotes_are_text = False
        self._session: PromptSession[str] = PromptSession(
            output=_stderr_output(),
            multiline=True,
            prompt_continuation=_continuation,
            history=self._history,
            completer=_FactsCompleter(facts),
            complete_while_typing=False,
            enable_suspend=True,
            key_bindings=self._bindings(),
            tempfile_suffix=".md",
        )
        self._session.default_buffer.on_text_changed += self._notice_recall

    def read(self, default: str) -> str:
        """The next message, `default` to be edited.

        Raises:
            EOFError: Ctrl-D with nothing typed.
            KeyboardInterrupt: Ctrl-C; a LineDiscarded if something was typed.
        """
        self._given, self._quotes_are_text = default, opens_block(default)
        return self._session.prompt(PROMPT, default=default)

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        at_prompt = has_focus(DEFAULT_BUFFER)
        keys.add("enter", filter=at_prompt)(self._enter)
        keys.add("escape", "enter", filter=at_prompt)(_new_line)
        keys.add(Keys.BracketedPaste, filter=at_prompt)(self._paste)
        keys.add("c-x", "c-e", filter=at_prompt & ~has_selection)(self._open_editor)
        keys.add("c-c", filter=at_prompt)(self._interrupt)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # the choice is made, the line is not
            return
        text, untouched = buffer.text, buffer.text == self._given
        if opens_block(text) and not self._quotes_are_text:
            if untouched or block_is_open(text):
                buffer.insert_text("\n")
            else:
                self._send(event, block_message(text))
        elif ends_in_backslash(text) and not untouched:
            buffer.document = Document(without_backslash(text) + "\n")
        else:
            self._send(event, text)

    def _send(self, event: KeyPressEvent, text: str) -> None:
        message = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._history.remember(message)
        event.app.exit(result=message)

    def _paste(self, event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        buffer = event.current_buffer
        before = buffer.text
        buffer.insert_text(text)
        self._note_given(buffer.text, before)

    def _note_given(self, text: str, before: str) -> None:
        """`text` was put there by something other than typing, where `before` had been."""
        self._given = text
        self._quotes_are_text = opens_block(text) and (self._quotes_are_text or not opens_block(before))

    def _notice_recall(self, buffer: Buffer) -> None:
        if self._history.holds(buffer.text):
            self._note_given(buffer.text, "")
        elif not buffer.text:
            self._given, self._quotes_are_text = "", False

    def _open_editor(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        before = buffer.text
        task = buffer.open_in_editor()
        task.add_done_callback(lambda _: self._note_given(buffer.text, before))

    def _interrupt(self, event: KeyPressEvent) -> None:
        kind = LineDiscarded if event.current_buffer.text else KeyboardInterrupt
        event.app.exit(exception=kind(), style="class:aborting")


def _continuation(_width: int, _line: int, is_soft_wrap: int) -> str:
    return "" if is_soft_wrap else CONTINUATION


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _stderr_output() -> Output:
    """Without cursor position requests, whose late answers would land in the answer."""
    output = create_output(stdout=sys.stderr)
    if hasattr(output, "enable_cpr"):
        output.enable_cpr = False
    return output


class _FileHistory(History):
    """Entries of the file, and of this run."""

    def __init__(self, file: HistoryFile | None) -> None:
        super().__init__()
        self._file = file
        self._entries = file.load() if file else []
        self._known = set(self._entries)

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        return reversed(self._entries)

    def store_string(self, string: str) -> None:
        """Keep an entry beyond this run."""
        self._entries.append(string)
        self._known.add(string)
        if self._file:
            self._file.append(string)

    def holds(self, text: str) -> bool:
        """True for the text of an entry."""
        return text in self._known

    def remember(self, text: str) -> None:
        """Add an entry, unless it is empty or the last one again."""
        if text.strip() and self._entries[-1:] != [text]:
            self.append_string(text)


class _FactsCompleter(Completer):
    def __init__(self, facts: CompletionFacts) -> None:
        self._suggest = partial(suggestions, facts)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The suggestions at the cursor."""
        for found in self._suggest(document.text_before_cursor):
            yield Completion(
                found.text, -found.replaces, display=found.text.rstrip(), display_meta=found.meta
            )
