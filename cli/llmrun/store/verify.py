"""Whether contents in the cache still are what the Hub advertised: hashed, and compared with their names.

A content lies under its digest, the SHA-256 of a large file and the id that git gives a small one, so it can
be checked without any network. Where links are not possible a file has no such name ("Limitations" in the Hub
client's guide to its cache), and the repository's listing has to tell the digest.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmrun.errors import ModelNotFound
from llmrun.gguf.text import printable
from llmrun.reports.download import FileChecked
from llmrun.store.hf_cache import CachedFile
from llmrun.store.listing import Listing
from llmrun.store.partial import Stamp, fresh_hash, stamp_of
from llmrun.store.repo_files import RepoFile

_READ_BYTES = 4 << 20
_EVENT_EVERY_S = 0.1


@dataclass(slots=True)
class Check:
    """The check of one file against `listed`: `damage` says after `run` what is wrong, empty for nothing, and
    `stamp` which writing of the file that is true of."""

    cached: CachedFile
    listed: RepoFile
    damage: str = ""
    stamp: Stamp = (0, 0)

    def run(self) -> Iterator[FileChecked]:
        """Hash the file as it lies on the disk. Raises `ModelNotFound` where it may not be read."""
        digest, done, shown_s = fresh_hash(self.listed), 0, time.monotonic()
        try:
            with self.cached.file.open("rb", buffering=0) as file:
                self.stamp = stamp_of(os.fstat(file.fileno()))
                while block := file.read(_READ_BYTES):
                    digest.update(block)
                    done += len(block)
                    if time.monotonic() - shown_s >= _EVENT_EVERY_S:
                        shown_s = time.monotonic()
                        yield FileChecked(self.cached.path, done, self.cached.size_bytes)
        except OSError as error:
            if error.errno != errno.EIO:
                raise ModelNotFound(
                    f"{printable(str(self.cached.file))} cannot be read: {error.strerror}",
                    "check its permissions",
                ) from error
            self.damage = f"the disk cannot read it beyond {done:,} bytes"
            return
        if digest.hexdigest() != self.listed.blob_name:
            self.damage = f"its digest is {digest.hexdigest()}, not {self.listed.blob_name}"


def named_digest(file: CachedFile) -> RepoFile | None:
    """`file` with the digest it is called by in the cache; None where its name tells none."""
    name, known = file.blob.name, RepoFile(file.path, file.size_bytes)
    if file.blob.parent.name != "blobs" or set(name) - set("0123456789abcdef"):
        return None
    return {64: replace(known, sha256=name), 40: replace(known, blob_id=name)}.get(len(name))


def listed_digest(file: CachedFile, listing: Listing) -> RepoFile:
    """`file` as the Hub lists it at its commit. Raises `ModelNotFound` where no digest of it is told."""
    for listed in listing.files:
        if listed.path == file.path and listed.blob_name:
            return listed
    raise ModelNotFound(
        f"{listing.repo} tells no digest for {printable(file.path)} at {listing.commit}",
        "fetch it anew: llmrun rm, then llmrun pull",
    )
