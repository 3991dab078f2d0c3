"""A file's bytes in order, fetched by several connections ahead of the reader.

The rest of the file is cut into pieces. Each connection asks for the next piece by an HTTP range (RFC 9110,
section 14) and keeps what came when the line breaks, so that only the missing bytes are asked for again.
Pieces are handed over in order, so what the reader writes is always a prefix of the file. A piece is as long
as its connection takes about a second for, and so short that what is asked for and not written yet, which is
lost when the program is killed, is a twentieth of the file at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from llmrun.errors import NetworkFailure
from llmrun.reports.download import HubAwaited
from llmrun.store.address import Address
from llmrun.store.hub import Body, Hub, Source
from llmrun.store.hub_errors import TransientFailure
from llmrun.store.listing import Listing
from llmrun.store.repo_files import RepoFile

LARGE_BYTES = 32 << 20
_PIECE_MIN, _PIECE_MAX = 256 << 10, 16 << 20
_AHEAD = 20  # the part of a file that may be asked for and not written yet
_PROGRESS_BYTES = 64 << 10
_TELL_EVERY_S = 0.5
_SILENT_S, _LOOK_EVERY_S = 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try. Times in seconds.

    A connection gives up after `attempts` failures between which it received next to nothing, waiting
    `backoff_s` before the second and twice as long before each further one. A server that asks for a longer
    wait gets it, up to `longest_wait_s`; one that asks for more is not waited for.
    """

    attempts: int = 7
    backoff_s: float = 0.5
    longest_wait_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Setback:
    """A connection failed for `reason` and tries again in `wait_s`."""

    reason: str
    wait_s: float


class WrongLength(TransientFailure):
    """An answer of another length than the listing's: no file, or not this one. No waiting mends that."""


class RangesIgnored(NetworkFailure):
    """The server always sends the whole file, so what is here cannot be continued."""


@dataclass(slots=True)
class _Piece:
    """Bytes `at` to `stop` are still to come; `ready` ones came and wait for the reader."""

    at: int
    stop: int
    ready: deque[bytes] = field(default_factory=deque)
    ready_bytes: int = 0


class Fetch:
    """The bytes of `file` from `start` on. Use as a context manager: leaving it stops the connections."""

    def __init__(
        self,
        hub: Hub,
        listing: Listing,
        file: RepoFile,
        start: int,
        connections: int,
        patience: Patience,
    ) -> None:
        self._hub, self._file, self._patience = hub, file, patience
        rest = file.size_bytes - start
        self._connections = connections if rest >= LARGE_BYTES else 1
        self._piece_bytes = _PIECE_MIN if self._connections > 1 else rest
        share = file.size_bytes // (_AHEAD * (self._connections + 2))  # one is being written, one asked for
        self._longest_bytes = max(_PIECE_MIN, min(_PIECE_MAX, share))
        self._next = start
        self._pieces: deque[_Piece] = deque()
        self._setbacks: deque[Setback] = deque()
        self._error: BaseException | None = None
        self._stopped = False
        self._address = Address(hub, listing, file)
        self._marks: dict[Source, str] = {}
        self._workers = 0
        self._lock = threading.Lock()
        self._readable, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._told_s = 0.0
        self._heard_s = time.monotonic()
        self.received_bytes = 0

    def __enter__(self) -> Fetch:
        self._start_workers(1)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            self._room.notify_all()

    def blocks(self) -> Iterator[bytes | Setback | HubAwaited]:
        """The bytes in order, in blocks of any length, the setbacks as they happen, and every second how long
        nothing has come.

        Raises `ContentChanged` or `RangesIgnored` where a fresh start is due, else the error of the
        connection that gave up.
        """
        while True:
            with self._lock:
                if not self._readable.wait_for(self._has_news, _LOOK_EVERY_S):
                    silent_s = time.monotonic() - self._heard_s
                    if silent_s < _SILENT_S:
                        continue
                    item: bytes | Setback | HubAwaited = HubAwaited(self._address.host, silent_s)
                elif self._setbacks:
                    item = self._setbacks.popleft()
                elif self._ready():
                    item = self._take()
                elif self._error is not None:
                    raise self._error
                else:
                    return
            yield item

    # -- the reader's side; the lock is held --------------------------------------------------------------

    def _has_news(self) -> bool:
        return bool(self._setbacks) or self._ready() or self._error is not None or self._at_end()

    def _ready(self) -> bool:
        return bool(self._pieces) and bool(self._pieces[0].ready)

    def _at_end(self) -> bool:
        return not self._pieces and self._next >= self._file.size_bytes

    def _take(self) -> bytes:
        piece = self._pieces[0]
        block = b"".join(piece.ready)
        piece.ready.clear()
        piece.ready_bytes = 0
        if piece.at >= piece.stop:
            self._pieces.popleft()
        self._room.notify_all()
        return block

    # -- the connections' side ----------------------------------------------------------------------------

    def _start_workers(self, wanted: int) -> None:
        """Have `wanted` connections; the first finds out whether the server knows ranges."""
        with self._lock:
            missing, self._workers = wanted - self._workers, wanted
        for _ in range(missing):
            threading.Thread(target=self._work, name="llmrun-fetch", daemon=True).start()

    def _work(self) -> None:
        try:
            while (piece := self._next_piece()) is not None:
                self._fill(piece)
        except BaseException as error:  # noqa: BLE001 raised again where the blocks are read
            with self._lock:
                self._error = self._error or error
                self._stopped = True
                self._room.notify_all()
                self._readable.notify()

    def _next_piece(self) -> _Piece | None:
        with self._lock:
            while len(self._pieces) > self._connections and not self._stopped:
                self._room.wait()
            if self._stopped or self._next >= self._file.size_bytes:
                return None
            piece = _Piece(self._next, min(self._next + self._piece_bytes, self._file.size_bytes))
            self._pieces.append(piece)
            self._next = piece.stop
            return piece

    def _fill(self, piece: _Piece) -> None:
        failures, before, odd = 0, piece.at, False
        while piece.at < piece.stop and not self._stopped:
            source = None
            try:
                source = self._address.ask()
                self._receive(piece, source)
            except TransientFailure as error:
                if isinstance(error, WrongLength):
                    if odd:
                        raise
                    odd = True
                self._address.forget(source)
                failures = 1 if piece.at - before >= _PROGRESS_BYTES else failures + 1
                before = piece.at
                self._wait(error, failures)

    def _receive(self, piece: _Piece, source: Source) -> None:
        began_s, first = time.monotonic(), piece.at
        with self._hub.open(source, piece.at, piece.stop) as body:
            self._check(piece, body, source)
            for chunk in body.chunks:
                if piece.at >= piece.stop or self._stopped:
                    break
                self._hand_over(piece, chunk)
        if piece.at < piece.stop and not self._stopped:
            raise TransientFailure("the connection ended early", "run the command again")
        self._adapt(piece.at - first, time.monotonic() - began_s)

    def _check(self, piece: _Piece, body: Body, source: Source) -> None:
        """Whether the answer is the content that was listed, and starts where it should.

        An odd answer is a `TransientFailure`: the Hub is then asked again whether the content has changed.
        """
        size = self._file.size_bytes
        if body.size_bytes != size:  # also a login page in between
            told = "an unknown number of" if body.size_bytes is None else f"{body.size_bytes:,}"
            raise WrongLength(
                f"the server has {told} bytes for {self._file.path}, the listing says {size:,}",
                "see in a browser whether a login page is in between; else try again later",
            )
        with self._lock:
            if body.etag != self._marks.setdefault(source, body.etag):
                raise TransientFailure(f"{self._file.path} changed on the server", "run the command again")
            if body.whole and body.start == piece.at and self._next == piece.stop:
                piece.stop = self._next = size
        if body.start != piece.at:
            raise RangesIgnored(f"the server sends {self._file.path} only as a whole", "try again later")
        if not body.whole:
            self._start_workers(self._connections)

    def _hand_over(self, piece: _Piece, chunk: bytes) -> None:
        with self._lock:
            self.received_bytes += len(chunk)
            self._heard_s = time.monotonic()
            kept = chunk[: piece.stop - piece.at]
            piece.at += len(kept)
            piece.ready.append(kept)
            piece.ready_bytes += len(kept)
            if self._pieces[0] is piece:
                self._readable.notify()
            while piece.ready_bytes > _PIECE_MAX and not self._stopped:
                self._room.wait()

    def _adapt(self, received: int, taken_s: float) -> None:
        """Make pieces as long as a connection takes about a second for."""
        with self._lock:
            if self._connections > 1 and taken_s > 0:
                pace = int(received / taken_s)
                self._piece_bytes = max(_PIECE_MIN, min(self._longest_bytes, pace, self._piece_bytes * 2))

    def _wait(self, error: TransientFailure, failures: int) -> None:
        asked_s = error.wait_s or 0.0
        if failures >= self._patience.attempts or asked_s > self._patience.longest_wait_s:
            raise error
        wait_s = max(asked_s, self._patience.backoff_s * 2.0 ** (failures - 1))
        with self._lock:
            self._heard_s = time.monotonic() + wait_s  # the silence until then is our own
            if time.monotonic() - self._told_s > _TELL_EVERY_S:  # all connections fail when the line breaks
                self._told_s = time.monotonic()
                self._setbacks.append(Setback(error.message, wait_s))
                self._readable.notify()
            self._room.wait_for(lambda: self._stopped, wait_s)
