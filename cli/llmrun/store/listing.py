"""What the Hub says of a repository, checked field by field: names become paths, digests file names."""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.errors import NetworkFailure
from llmrun.store.hf_cache import is_commit, safe_parts
from llmrun.store.hub_errors import Asked
from llmrun.store.repo_files import RepoFile

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files at one commit. `repo` is the name as the Hub spells it."""

    repo: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...]


def parse_listing(document: object, asked: Asked) -> Listing:
    """The listing in the answer of `/api/models/REPO/revision/REVISION?blobs=true`.

    Files whose names could leave the cache, or without a usable size, are left out. Raises `NetworkFailure`
    for an answer that is none.
    """
    known = document if isinstance(document, dict) else {}
    commit, siblings, name = known.get("sha"), known.get("siblings"), known.get("id")
    if not isinstance(commit, str) or not is_commit(commit) or not isinstance(siblings, list):
        raise NetworkFailure(f"{asked.endpoint} did not answer like a Hub", "check HF_ENDPOINT")
    repo = name if isinstance(name, str) and name.lower() == asked.repo.lower() else asked.repo
    files = tuple(file for file in map(_file, siblings) if file is not None)
    return Listing(repo, asked.revision, commit, files)


def _file(entry: object) -> RepoFile | None:
    """A listed file; None where its name or size cannot be used."""
    if not isinstance(entry, dict):
        return None
    large = entry.get("lfs")
    large = large if isinstance(large, dict) else {}
    path, size = entry.get("rfilename"), large.get("size", entry.get("size"))
    if not isinstance(path, str) or type(size) is not int or size < 0:
        return None
    try:
        safe_parts(path)
    except NetworkFailure:
        return None
    return RepoFile(path, size, _digest(large.get("sha256"), 64), _digest(entry.get("blobId"), 40))


def _digest(value: object, length: int) -> str:
    """A digest as the server gave it, empty where it is not one: it becomes a file name."""
    text = value.lower() if isinstance(value, str) else ""
    return text if len(text) == length and set(text) <= _HEX else ""
