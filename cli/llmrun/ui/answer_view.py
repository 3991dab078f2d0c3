"""Shows a request's events to a person: the answer on stdout as it comes, everything else on stderr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmrun.events import (
    Completion,
    Event,
    Finished,
    LoadProgress,
    Notice,
    Prefilled,
    PrefillProgress,
    TextKind,
    Token,
)
from llmrun.ui.panel import PanelMode, print_panel
from llmrun.ui.progress import PhaseProgress
from llmrun.ui.streams import Streams
from llmrun.ui.visible import VisibleStream, visible

if TYPE_CHECKING:
    from rich.console import Console

Think = Literal["show", "dim", "hide"]


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How to show an answer. `stream` off changes the display only: the same text, all at once."""

    think: Think = "hide"
    stats: bool = False
    panel: PanelMode = "full"
    markdown: bool = False
    stream: bool = True
    quiet: bool = False
    verbose: bool = False


class AnswerView:
    """Takes events one by one; `completion` is set when the request has finished."""

    def __init__(self, streams: Streams, options: ViewOptions) -> None:
        self._streams = streams
        self._options = options
        self._progress = PhaseProgress(streams, enabled=not options.quiet)
        self._kind: TextKind | None = None
        self._held: list[str] = []
        self._visible = VisibleStream()
        self._console_made: Console | None = None
        self.completion: Completion | None = None

    @property
    def shows_context(self) -> bool:
        """Whether it will show what the parts of the prompt take of the context."""
        return self._options.stats and self._options.panel == "full"

    @property
    def _console(self) -> Console:
        if self._console_made is None:
            self._console_made = self._streams.error_console()
        return self._console_made

    def wants(self, event: Event) -> bool:
        """Whether `take` would do anything with `event`."""
        return not isinstance(event, Token) or bool(event.text)

    def take(self, event: Event) -> None:
        """Show one event.

        Raises:
            BrokenPipeError: whoever read stdout has gone.
        """
        match event:
            case LoadProgress():
                self._progress.loading(event.fraction)
            case Notice():
                self._notice(event)
            case PrefillProgress():
                self._progress.prefill(event.done, event.total, event.elapsed_s)
            case Prefilled():
                self._progress.clear()
            case Token() if event.text:
                self._progress.clear()
                self._text(event.kind, event.text)
            case Finished():
                self._finish(event.completion)
            case _:
                pass

    def close(self) -> None:
        """Leave the terminal clean, also after an error."""
        self._progress.clear()

    def _notice(self, notice: Notice) -> None:
        o = self._options
        shown = notice.level == "warning" or o.verbose or (self._streams.err_is_terminal and not o.quiet)
        if shown:
            self._progress.clear()
            prefix = "warning: " if notice.level == "warning" else ""
            text = f"{prefix}{visible(notice.text)}"
            self._console.print(text, style="yellow" if prefix else "dim", soft_wrap=True)

    def _text(self, kind: TextKind, text: str) -> None:
        changed, self._kind = self._kind not in (None, kind), kind
        if kind == "reasoning":
            if self._options.think == "show":
                self._out(text)
            elif self._options.think == "dim":
                self._dim(text)
            return
        if changed and self._options.think == "show":
            self._out("\n\n")
        elif changed and self._options.think == "dim":
            self._dim("\n\n")
        self._out(text)

    def _dim(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(visible(text), style="dim"), end="", soft_wrap=True)

    def _out(self, text: str) -> None:
        if self._options.stream:
            self._write(text)
        else:
            self._held.append(text)

    def _write(self, text: str) -> None:
        self._streams.write_text(self._visible.feed(text) if self._streams.out_is_terminal else text)

    def _finish(self, completion: Completion) -> None:
        self._progress.clear()
        if self._held:
            self._write("".join(self._held))
        if self._streams.out_is_terminal:
            end = "" if completion.text.endswith("\n") else "\n"
            self._streams.write_text(self._visible.finish() + end)
        if self._options.stats:
            as_lines = not self._streams.err_can_redraw or self._streams.plain
            print_panel(self._console, completion, self._options.panel, as_lines=as_lines)
        self.completion = completion
