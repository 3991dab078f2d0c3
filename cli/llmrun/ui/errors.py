"""Errors as people and scripts get them."""

from __future__ import annotations

from llmrun.documents.requests import dump, error_document, error_record
from llmrun.errors import LlmrunError
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line

_RED, _RESET = "\x1b[1;31m", "\x1b[0m"


def print_error(
    streams: Streams, error: LlmrunError, *, as_json: bool = False, line_at_s: float | None = None
) -> None:
    """What is wrong, then what to do next, on stderr; with `as_json` the document on stdout as well.

    `line_at_s`: the document is an event of a stream of lines, at this time on the process's clock.
    """
    colour = streams.err_is_terminal and not streams.plain
    label = f"{_RED}error:{_RESET}" if colour else "error:"
    lines = f"{label} {one_line(error.message)}\n"
    if error.hint:
        lines += f"  {one_line(error.hint)}\n"
    streams.err.write(lines)
    streams.err.flush()
    if as_json:
        streams.write_text(
            dump(error_document(error) if line_at_s is None else error_record(error, line_at_s))
        )
