"""The models on this machine, and what removing some frees, as values: made by `app`, shown by `ui`.

Sizes are bytes, times seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["hub", "package"]


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model, or what has come of one. `name` is how to call it, empty where it cannot be called alone.

    `complete` is false for a broken-off download and a set with missing parts; `total_bytes` is then how
    long it will be, None where that is not known. `kind` says what it is where it does not generate text,
    empty where it does; `arch` is its architecture, empty where it was not read. `origin` is the package that
    carries it, `repo` the repository it is from. `used_s` is when it was last read, by the file system's
    account. `paths` are its files.
    """

    name: str
    quant: str
    size_bytes: int
    source: Source
    paths: tuple[Path, ...]
    used_s: float
    repo: str = ""
    origin: str = ""
    kind: str = ""
    arch: str = ""
    complete: bool = True
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """All models on this machine, by name. `hub_cache` is the folder that tools share, `size_bytes` what the
    models take; contents that several share count once. `readable` is false where the folder is
    there and cannot be looked into."""

    models: tuple[KeptModel, ...]
    hub_cache: Path
    size_bytes: int
    readable: bool = True


@dataclass(frozen=True, slots=True)
class KnownModel:
    """An entry of the catalogue. `quant` is taken where none is named; `about_bytes` is what it weighs,
    reckoned from the parameters. `source` is a repository or a package. None and empty: not told there."""

    name: str
    title: str
    purpose: str
    licence: str
    parameters: int | None
    active_parameters: int | None
    context: int | None
    quant: str
    source: str
    about_bytes: int | None


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to go under one name: `paths` of a repository, and what they take now, broken-off downloads
    included. `titles` name the quantizations."""

    name: str
    repo: str
    titles: tuple[str, ...]
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What went: bytes that are free now, and bytes that stay because another entry needs them."""

    name: str
    freed_bytes: int
    shared_bytes: int
