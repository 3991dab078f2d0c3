"""Shows a request's events on a terminal while they happen: growing text, and the panel alive underneath.

Redrawn from the event loop on a time budget, never by a thread of its own. Text goes out at most every
`TEXT_S`, the panel is laid out again at most every `PANEL_S`; both are far below what an eye can follow and
cost the decode loop next to nothing (benchmarks/panel_cost.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmrun.events import (
    Completion,
    Event,
    Finished,
    Loaded,
    LoadProgress,
    Measured,
    Notice,
    PrefillProgress,
    Token,
)
from llmrun.ui.answer_view import ViewOptions
from llmrun.ui.bar import bar
from llmrun.ui.live import LiveText
from llmrun.ui.panel import Figures, one_line_figures, panel, print_panel, rendered_lines
from llmrun.ui.progress import FELT_S, prefill_detail
from llmrun.ui.streams import Streams
from llmrun.ui.visible import VisibleStream, visible

if TYPE_CHECKING:
    from llmrun.ui.markdown import MarkdownStyler

TEXT_S = 0.03
PANEL_S = 0.25
_DIM = "2"
_BAR_CELLS = 20


class LiveView:
    """Takes events one by one; `completion` is set when the request has finished. For terminals only."""

    def __init__(self, streams: Streams, options: ViewOptions) -> None:
        self._streams = streams
        self._options = options
        self._live = LiveText(streams.write_text, _size)
        self._styler = _styler(options)
        self._kind = ""
        self._visible = VisibleStream()
        self._began_s = time.monotonic()
        self._flushed_s = 0.0
        self._laid_out_s = 0.0
        self._title, self._threads = "", 0
        self.completion: Completion | None = None

    def wants(self, event: Event) -> bool:
        """Whether `take` would do anything with `event`."""
        return not isinstance(event, Token) or bool(event.text)

    def take(self, event: Event) -> None:
        """Show one event."""
        match event:
            case LoadProgress():
                self._phase(f"loading {bar(event.fraction, _BAR_CELLS)} {event.fraction:4.0%}")
            case Loaded():
                self._live.close()
            case PrefillProgress():
                share = event.done / event.total if event.total else 1.0
                detail = prefill_detail(event.done, event.total, event.elapsed_s)
                self._phase(f"reading {bar(share, _BAR_CELLS)} {detail}")
            case Token() if event.text:
                self._text(event)
            case Measured():
                self._measured(event)
            case Notice():
                self._notice(event)
            case Finished():
                self._finish(event.completion)
            case _:
                pass

    def introduce(self, title: str, n_threads: int) -> None:
        """What the panel says of the model."""
        self._title, self._threads = title, n_threads

    def close(self) -> None:
        """Leave the terminal clean, also after an error."""
        self._live.close()

    def _phase(self, line: str) -> None:
        """One line about a phase without text yet, once the wait is felt."""
        now_s = time.monotonic()
        if now_s - self._began_s >= FELT_S and now_s - self._laid_out_s >= TEXT_S:
            self._laid_out_s = now_s
            columns, _ = _size()
            self._live.set_block([line[: columns - 1]])
            self._live.flush()

    def _text(self, event: Token) -> None:
        think = self._options.think
        if event.kind == "reasoning" and think == "hide":
            return
        if self._kind == "reasoning" and event.kind == "answer":
            self._live.append(self._visible.finish() + "\n\n")
        self._kind = event.kind
        text = self._visible.feed(event.text)
        if event.kind == "reasoning":
            self._live.append(text, _DIM if think == "dim" else "")
        elif self._styler is not None:
            for style, part in self._styler.feed(text):
                self._live.append(part, style)
        else:
            self._live.append(text)
        if time.monotonic() - self._flushed_s >= TEXT_S:
            self._flush()

    def _flush(self) -> None:
        self._flushed_s = time.monotonic()
        self._live.flush()

    def _measured(self, event: Measured) -> None:
        if not self._options.stats or self._options.panel == "off":
            self._flush()
            return
        status = "thinking" if event.stats.ttft_answer_s is None else "answering"
        figures = Figures.of_measured(event, self._title, status, self._threads)
        self._live.set_block(self._layout(figures))
        self._flush()

    def _layout(self, figures: Figures) -> Sequence[str]:
        columns, _ = _size()
        if self._options.panel == "line":
            return [one_line_figures(figures, columns - 1)[: columns - 1]]
        return rendered_lines(panel(figures, columns - 1), columns - 1, no_color=self._streams.plain)

    def _notice(self, notice: Notice) -> None:
        if notice.level == "info" and self._options.quiet:
            return
        self._end_text()
        prefix = "warning: " if notice.level == "warning" else ""
        console = self._streams.error_console()
        style = "yellow" if prefix else "dim"
        console.print(f"{prefix}{visible(notice.text)}", style=style, soft_wrap=True)

    def _end_text(self) -> None:
        """Take the block away and let the next thing begin on a line of its own."""
        if self._styler is not None:
            for style, part in [*self._styler.feed(self._visible.finish()), *self._styler.finish()]:
                self._live.append(part, style)
        else:
            self._live.append(self._visible.finish())
        self._live.close()
        if not self._live.at_line_start:
            self._live.append("\n")
            self._live.close()

    def _finish(self, completion: Completion) -> None:
        self._end_text()
        if self._options.stats:
            print_panel(self._streams.error_console(), completion, self._options.panel, as_lines=False)
        self.completion = completion


def _size() -> tuple[int, int]:
    size = os.get_terminal_size()
    return max(2, size.columns), max(1, size.lines)


def _styler(options: ViewOptions) -> MarkdownStyler | None:
    if not options.markdown:
        return None
    from llmrun.ui.markdown import MarkdownStyler

    return MarkdownStyler()
