"""Files of a repository on the Hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository. `path` is relative to the repository's root, with forward slashes.

    `sha256` is the digest of the content that the Hub advertises, empty for small files kept in git;
    `blob_id` the git object's SHA-1, empty where the Hub did not say.
    """

    path: str
    size_bytes: int
    sha256: str = ""
    blob_id: str = ""

    @property
    def blob_name(self) -> str:
        """Name of the file's content in the Hugging Face cache: its digest, for small files the git id."""
        return self.sha256 or self.blob_id
