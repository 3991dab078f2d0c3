"""What the prefix cache on disk holds, as values: made by `app`, shown by `ui`. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """One snapshot. `model` is the digest of the model's files, `title` what it is called; `used_s` seconds
    since 1970; `checkpoint_tokens` where in it a forgetting memory can go on."""

    path: str
    model: str
    title: str
    tokens: int
    checkpoint_tokens: tuple[int, ...]
    size_bytes: int
    used_s: float
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The folder, its bound, and its snapshots, the last used first. Damaged files were removed."""

    folder: str
    limit_bytes: int
    used_bytes: int
    prefixes: tuple[StoredPrefix, ...]
    damaged: int = 0
    foreign: int = 0
