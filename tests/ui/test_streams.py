"""Text on stdout arrives whole, however little the stream takes at a time."""

from __future__ import annotations

import io
import sys

from llmrun.ui.streams import Streams


class Sparing(io.BytesIO):
    """Takes three bytes a write, as an unbuffered stream may that a signal interrupts."""

    def write(self, data: object) -> int:
        return super().write(bytes(data)[:3])  # type: ignore[call-overload]


def test_what_a_write_leaves_over_is_written_after_it() -> None:
    out = Sparing()
    streams = Streams(out, sys.stderr, False, False, {})
    streams.write_text("häßlich, aber ganz\n")
    streams.write_text("")
    assert out.getvalue().decode() == "häßlich, aber ganz\n"
