"""Shows a request's events to a program: one JSON document, or one JSON object a line."""

from __future__ import annotations

from llmrun.documents.requests import completion_document, dump, stream_record
from llmrun.events import Completion, Event, Finished, Notice
from llmrun.ui.streams import Streams
from llmrun.ui.visible import visible


class JsonView:
    """Takes events one by one; warnings still go to stderr as lines."""

    def __init__(self, streams: Streams, *, lines: bool, verbose: bool = False) -> None:
        self._streams = streams
        self._lines = lines
        self._verbose = verbose
        self.completion: Completion | None = None

    shows_context = False

    def wants(self, event: Event) -> bool:
        """Whether `take` would do anything with `event`."""
        return self._lines or isinstance(event, Notice | Finished)

    def take(self, event: Event) -> None:
        """Write what this event stands for.

        Raises:
            BrokenPipeError: whoever read stdout has gone.
        """
        if isinstance(event, Notice) and (event.level == "warning" or self._verbose):
            prefix = "warning: " if event.level == "warning" else ""
            self._streams.err.write(f"{prefix}{visible(event.text)}\n")
            self._streams.err.flush()
        if self._lines:
            record = stream_record(event)
            if record is not None:
                self._streams.write_text(dump(record))
        if isinstance(event, Finished):
            self.completion = event.completion
            if not self._lines:
                self._streams.write_text(dump(completion_document(event.completion)))

    def close(self) -> None:
        """Nothing is left open."""
