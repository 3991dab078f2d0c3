"""What asks the Hub or fetches from it, run to its end and shown meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from llmrun.reports.download import DownloadEvent
    from llmrun.ui.streams import Streams

T = TypeVar("T")


def shown(events: Generator[DownloadEvent, None, T], streams: Streams, *, quiet: bool = False) -> T:
    """What `events` come to. Raises what they raise, and `Interrupted` at Ctrl-C."""
    view = None
    with closing(events):
        try:
            while True:
                event = next(events)
                if view is None:
                    from llmrun.ui.download_view import DownloadView

                    view = DownloadView(streams, quiet=quiet)
                view.take(event)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            if view is not None:
                view.close()
