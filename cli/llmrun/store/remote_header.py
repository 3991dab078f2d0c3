"""The header of a model file on the Hub, without the rest of it.

A header's length is known only once it has been read, so the beginning is asked for by HTTP ranges (RFC 9110,
section 14): a first piece, then as far as the reader says it needs, and a twentieth more. What came is kept
in the user's cache as a sparse file of the full length, which every reader takes for the model itself; its
name holds the digest of the content, so it never grows old.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import NetworkFailure, NotAModel, WriteFailure
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.reader import MAX_HEADER_BYTES, NeedMoreBytes, parse_header
from llmrun.gguf.sparse import write_sparse
from llmrun.store.hf_cache import safe_parts
from llmrun.store.hub import Hub, Source
from llmrun.store.hub_errors import TransientFailure, Unreachable
from llmrun.store.listing import Listing
from llmrun.store.repo_files import RepoFile

FOLDER = "headers"
FIRST_BYTES = 128 << 10
FIRST_OF_PART_BYTES = 16 << 10
"""Asked for first of further parts: they hold a table of tensors and next to nothing else."""
_MORE = 20  # a twentieth
_LARGEST_GUESS = 16  # times what is there; a list may begin with its longest texts
_MOST_ENTRIES = 200
_ATTEMPTS, _BACKOFF_S, _LONGEST_WAIT_S = 4, 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Headers:
    """Header-only copies of a model's files, in order. `received_bytes` came over the network for them."""

    files: tuple[Path, ...]
    received_bytes: int


def fetch_headers(hub: Hub, listing: Listing, files: Sequence[RepoFile], cache_dir: Path) -> Headers:
    """Headers of `files` of a repository, from `cache_dir` where they have been read before.

    Raises:
        NetworkFailure, ModelNotFound: as the methods of `Hub`.
        NotAModel: a file is something else, or its header is broken.
        WriteFailure: the copy cannot be written.
    """
    folder = cache_dir / FOLDER
    found, received = [], 0
    for no, file in enumerate(files):
        copy = kept_header(listing, file, cache_dir)
        if copy is None:
            data, header, came = _read(hub, listing, file, FIRST_BYTES if no == 0 else FIRST_OF_PART_BYTES)
            copy = _keep(folder, listing, file, data, header)
            received += came
        found.append(copy)
    return Headers(tuple(found), received)


def kept_header(listing: Listing, file: RepoFile, cache_dir: Path) -> Path | None:
    """The copy that an earlier call made; None where there is none, or it is damaged."""
    for entry in (cache_dir / FOLDER).glob(f"{_key(listing, file)}-*"):
        copy = entry / safe_parts(file.path)[-1]
        with suppress(OSError):
            for same in entry.iterdir():  # of one content, whatever it is called
                if same.name != copy.name and not copy.exists():
                    os.link(same, copy)
        if _is_whole(copy, entry.name, file.size_bytes):
            with suppress(OSError):
                os.utime(entry)
            return copy
        shutil.rmtree(entry, ignore_errors=True)
    return None


def _key(listing: Listing, file: RepoFile) -> str:
    """The content's digest; where the Hub tells none, one of its place, which never changes content."""
    place = f"{listing.repo}/{listing.commit}/{file.path}"
    return file.sha256 or hashlib.sha256(place.encode()).hexdigest()


def _is_whole(copy: Path, entry_name: str, size_bytes: int) -> bool:
    """Whether the copy has the length and the header that were written."""
    _, length, check = entry_name.rsplit("-", 2)
    try:
        with copy.open("rb") as file:
            head = file.read(int(length))
            return os.fstat(file.fileno()).st_size == size_bytes and f"{zlib.crc32(head):08x}" == check
    except (OSError, ValueError):
        return False


def _keep(folder: Path, listing: Listing, file: RepoFile, data: bytes, header: GgufHeader) -> Path:
    """Write the copy under its final name at once, and let the oldest go."""
    head = data[: header.data_offset]
    entry = folder / f"{_key(listing, file)}-{len(head)}-{zlib.crc32(head):08x}"
    name = safe_parts(file.path)[-1]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", ignore_cleanup_errors=True) as beside:
            made = Path(beside) / "made"
            made.mkdir()
            os.truncate(write_sparse(made / name, head, header), file.size_bytes)
            with suppress(OSError):  # another process was quicker
                os.rename(made, entry)
        _drop_oldest(folder)
    except OSError as error:
        raise WriteFailure(
            f"cannot write in {folder}: {error.strerror}", "set LLMRUN_CACHE_DIR to another folder"
        ) from error
    return entry / name


def _drop_oldest(folder: Path) -> None:
    with suppress(OSError):  # another process clears up, too
        entries = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(folder))
        for _, name in entries[:-_MOST_ENTRIES]:
            shutil.rmtree(folder / name, ignore_errors=True)


def _read(hub: Hub, listing: Listing, file: RepoFile, first_bytes: int) -> tuple[bytes, GgufHeader, int]:
    """The first bytes of a file, its header, and how many bytes came."""
    with _Beginning(hub, listing, file) as beginning:
        wanted = first_bytes
        while True:
            data = beginning.up_to(min(wanted, file.size_bytes))
            try:
                header = parse_header(data, name=f"{listing.repo}/{file.path}", file_bytes=file.size_bytes)
            except NotAModel as error:
                raise NotAModel(error.message, "choose another quantization or repository") from None
            except NeedMoreBytes as more:
                likely = max(more.needed_bytes, min(more.likely_bytes, _LARGEST_GUESS * len(data)))
                wanted = min(likely + likely // _MORE, MAX_HEADER_BYTES)
            else:
                return data, header, beginning.received_bytes


class _Beginning:
    """The first bytes of a remote file, as many as are asked for; the file is located once."""

    def __init__(self, hub: Hub, listing: Listing, file: RepoFile) -> None:
        self._hub, self._listing, self._file = hub, listing, file
        self._data = bytearray()
        self._source: Source | None = None
        self._open = ExitStack()
        self._chunks: Iterator[bytes] = iter(())
        self.received_bytes = 0

    def __enter__(self) -> _Beginning:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def up_to(self, stop: int) -> bytes:
        """Bytes 0 to before `stop`, or a few more. A broken line is mended; silence ends it."""
        failures = 0
        while (before := len(self._data)) < stop:
            try:
                self._receive(stop)
            except TransientFailure as error:
                came = len(self._data) > before
                failures = 1 if came else failures + 1
                wait_s = max(error.wait_s or 0.0, _BACKOFF_S * 2 ** (failures - 1))
                silent = isinstance(error, Unreachable) and not came
                if silent or failures == _ATTEMPTS or wait_s > _LONGEST_WAIT_S:
                    raise
                self._source, self._chunks = None, iter(())
                time.sleep(wait_s)
        return bytes(self._data)

    def _receive(self, stop: int) -> None:
        """Go on with the open answer, else ask for what is missing."""
        for chunk in self._chunks:
            self.received_bytes += len(chunk)
            self._data += chunk
            if len(self._data) >= stop:
                return
        skip = self._ask(stop)
        for chunk in self._chunks:
            self.received_bytes += len(chunk)
            self._data += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(self._data) >= stop:
                return
        raise TransientFailure(
            f"the Hub sent only {len(self._data):,} bytes of {self._file.path}", "try again"
        )

    def _ask(self, stop: int) -> int:
        """Open an answer; the number of its bytes that are here already."""
        self._open.close()
        self._source = self._source or self._locate()
        body = self._open.enter_context(self._hub.open(self._source, len(self._data), stop))
        if body.size_bytes not in (None, self._file.size_bytes) or body.start > len(self._data):
            raise NetworkFailure(
                f"{self._file.path} is not the file that the Hub has listed: {body.size_bytes or 0:,} bytes, "
                f"not {self._file.size_bytes:,}",
                "run the command again",
            )
        self._chunks = body.chunks
        return len(self._data) - body.start

    def _locate(self) -> Source:
        source, known = self._hub.locate(self._listing, self._file), self._file.blob_name
        if len(source.etag) == len(known) and source.etag != known:
            raise NetworkFailure(
                f"{self._file.path} is not the content that the Hub has listed", "run the command again"
            )
        return source
