"""One snapshot on disk: the tokens of a prefix and the engine's copies of its K/V.

    magic, version, length of the header     16 bytes
    header: JSON                             model, settings, places, sizes, sums
    tokens: 32-bit numbers
    history: JSON                            how the tokens came about, for resumed chats; may be empty
    states: the whole one, then checkpoints

Header and tokens have a check sum of their own, so that a search reads no more than them. The states have
another, checked before the engine gets to see them: CRC-32, which finds damage and costs a tenth of reading.
It is no protection against forgery; the folder belongs to the user alone.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrun.store.patience import ENDLESS, PIECE_BYTES, Patience

MAGIC, VERSION = b"llmrunKV", 1
_FIXED = struct.Struct("<8sIII")  # magic, version, header length, check sum of header and tokens
_MOST_HEADER_BYTES = 1 << 20
_MOST_TOKENS = 1 << 24
_FIRST_READ_BYTES = 1 << 16


class Foreign(Exception):
    """The file is not a snapshot, or one of another version or place."""


class Damaged(Exception):
    """The file is a snapshot that was cut short or changed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A state in the file: after `position` tokens, with positions from `pos_min` on."""

    position: int
    pos_min: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a search needs of a snapshot. `places`: the whole state first, then checkpoints.

    `settings` by name as they were, `title` what the model is called; `prefill_s` is what one token took to
    evaluate.
    """

    path: Path
    model: str
    settings: Mapping[str, str]
    title: str
    tokens: array[int]
    places: tuple[Place, ...]
    prefill_s: float
    history_bytes: int
    states_crc: int
    size_bytes: int
    used_s: float

    @property
    def _history_at(self) -> int:
        return self.size_bytes - sum(place.size_bytes for place in self.places) - self.history_bytes

    def history(self) -> str:
        """The history kept with it. Raises Damaged."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._history_at)
                return file.read(self.history_bytes).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Damaged(str(error)) from error

    def states(self) -> list[memoryview]:
        """The states in order of `places`, in memory of this process's own. Raises Damaged."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != self.size_bytes:
                    raise Damaged("it has another size than its header says")
                # a private mapping costs no copy; snapshots are replaced and removed, never written to
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except (OSError, ValueError) as error:
            raise Damaged(str(error)) from error
        at = self._history_at
        if zlib.crc32(whole[at:]) != self.states_crc:
            raise Damaged("its check sum does not match")
        at += self.history_bytes
        found = []
        for place in self.places:
            found.append(whole[at : at + place.size_bytes])
            at += place.size_bytes
        return found


def write_snapshot(
    path: Path,
    *,
    model: str,
    settings: Mapping[str, str],
    title: str,
    tokens: Sequence[int],
    states: Sequence[tuple[Place, bytearray | memoryview]],
    prefill_s: float,
    history: str = "",
    patience: Patience = ENDLESS,
) -> None:
    """Write a snapshot to `path`, which is created. Raises OSError, and GaveUp where it was to end before."""
    numbers = array("i", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    told = history.encode()
    crc = zlib.crc32(told)
    for _, data in states:
        crc = zlib.crc32(data, crc)
    places = [[p.position, p.pos_min, p.size_bytes] for p, _ in states]
    header = json.dumps(
        {
            "model": model,
            "settings": dict(settings),
            "title": title,
            "n_tokens": len(numbers),
            "places": places,
            "prefill_s": prefill_s,
            "history_bytes": len(told),
            "states_crc": crc,
        }
    ).encode()
    sum_of_head = zlib.crc32(numbers.tobytes(), zlib.crc32(header))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        head = _FIXED.pack(MAGIC, VERSION, len(header), sum_of_head) + header + numbers.tobytes() + told
        done_bytes = 0
        for part in (memoryview(head), *(memoryview(data) for _, data in states)):
            rest = part
            while rest:
                patience.check(done_bytes)
                count = os.write(file.fileno(), rest[:PIECE_BYTES])
                rest, done_bytes = rest[count:], done_bytes + count


def read_snapshot(path: Path) -> Snapshot:
    """Read header and tokens.

    Raises:
        Foreign: it is no snapshot.
        Damaged: it is not whole.
        OSError: it cannot be read, or is not there any more.
    """
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        begin = file.read(_FIRST_READ_BYTES)
        if len(begin) < _FIXED.size:
            raise Damaged("it is cut short")
        magic, version, header_bytes, head_crc = _FIXED.unpack_from(begin)
        if magic != MAGIC or version != VERSION:
            raise Foreign("it is no snapshot of this version")
        if header_bytes > _MOST_HEADER_BYTES:
            raise Damaged("its header cannot be that long")
        head_end = _FIXED.size + header_bytes
        if len(begin) < head_end:
            begin += file.read(head_end - len(begin))
        header = begin[_FIXED.size : head_end]
        told = _told(header)
        tokens_end = head_end + 4 * told["n_tokens"]
        if len(begin) < tokens_end:
            begin += file.read(tokens_end - len(begin))
    numbers = begin[head_end:tokens_end]
    if zlib.crc32(numbers, zlib.crc32(header)) != head_crc:
        raise Damaged("its header's check sum does not match")
    return _parsed(path, stat, told, numbers, tokens_end)


def _told(header: bytes) -> Mapping[str, Any]:
    """What a header says, with a number of tokens that can be; nothing else of it is sure yet."""
    try:
        told: Mapping[str, Any] = json.loads(header)
        count = told["n_tokens"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged("its header cannot be read") from error
    if not isinstance(count, int) or not 0 < count <= _MOST_TOKENS:
        raise Damaged("it cannot have that many tokens")
    return told


def _parsed(
    path: Path, stat: os.stat_result, header: Mapping[str, Any], numbers: bytes, tokens_end: int
) -> Snapshot:
    """The snapshot of a header whose check sum was right."""
    tokens = array("i")
    tokens.frombytes(numbers)
    if sys.byteorder == "big":
        tokens.byteswap()
    try:
        snapshot = Snapshot(
            path=path,
            model=str(header["model"]),
            settings={str(name): str(value) for name, value in header["settings"].items()},
            title=str(header["title"]),
            tokens=tokens,
            places=tuple(Place(*map(int, place)) for place in header["places"]),
            prefill_s=float(header["prefill_s"]),
            history_bytes=int(header["history_bytes"]),
            states_crc=int(header["states_crc"]),
            size_bytes=stat.st_size,
            used_s=stat.st_mtime,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged("its header lacks something") from error
    places = snapshot.places
    if any(place.size_bytes < 0 or not 0 < place.position <= len(tokens) for place in places):
        raise Damaged("its states cannot be where its header says")
    whole = tokens_end + snapshot.history_bytes + sum(place.size_bytes for place in places)
    if stat.st_size != whole or not places or places[0].position != len(tokens):
        raise Damaged("it is cut short" if stat.st_size < whole else "it is longer than its header says")
    return snapshot
