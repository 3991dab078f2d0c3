"""Where a file's bytes lie, for all connections that fetch it.

The Hub redirects to a signed address at a storage host, which expires after a while; it is asked for again
after each failure, and may then tell that the content has changed.
"""

from __future__ import annotations

import threading

from llmrun.errors import NetworkFailure
from llmrun.store.hub import Hub, Source
from llmrun.store.hub_errors import TransientFailure, host_of
from llmrun.store.listing import Listing
from llmrun.store.repo_files import RepoFile


class ContentChanged(NetworkFailure):
    """The Hub now has another content under `path` than its listing said."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"{path} {what}", "run the command again; if it says the same, tell the file's makers"
        )
        self.path = path


class Address:
    """The address of `file`. Of connections that fail together one asks, and all have its answer: in turn
    they would wait for long."""

    def __init__(self, hub: Hub, listing: Listing, file: RepoFile) -> None:
        self._hub, self._listing, self._file = hub, listing, file
        self._source: Source | None = None
        self._asked, self._refused = 0, TransientFailure("nobody asked")
        self._locating = threading.Lock()

    @property
    def host(self) -> str:
        """Host and port the bytes come from; the Hub's own while it has not said."""
        source = self._source
        return host_of(source.url if source else self._hub.endpoint)

    def ask(self) -> Source:
        """The address, asked for where none is known. Raises `ContentChanged`, and what the Hub refuses."""
        asked = self._asked
        with self._locating:
            if self._source is None:
                if self._asked != asked:
                    raise self._refused
                try:
                    source = self._hub.locate(self._listing, self._file)
                except TransientFailure as error:
                    self._asked, self._refused = self._asked + 1, error
                    raise
                self._check(source)
                self._source = source
            return self._source

    def forget(self, source: Source | None) -> None:
        """`source` failed: ask again, unless somebody has."""
        with self._locating:
            if self._source is source:
                self._source = None

    def _check(self, source: Source) -> None:
        wanted, size = self._file.blob_name, self._file.size_bytes
        if len(source.etag) == len(wanted) and source.etag != wanted:
            raise ContentChanged(self._file.path, "is not the content that was listed")
        if source.size_bytes not in (None, size):
            what = f"has {source.size_bytes:,} bytes now, the listing says {size:,}"
            raise ContentChanged(self._file.path, what)
