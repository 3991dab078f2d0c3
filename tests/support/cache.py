"""A Hugging Face cache on disk, made as a download leaves it: blobs, links, refs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

FIRST, SECOND = "1" * 40, "2" * 40


def fill_cache(
    root: Path, repo: str, files: Mapping[str, bytes], commit: str = FIRST, *, current: bool = True
) -> dict[str, Path]:
    """Put `files` of `repo` into the cache at `root`; the paths to open them by."""
    folder = root / ("models--" + repo.replace("/", "--"))
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, content in files.items():
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(*[".."] * (len(Path(name).parts) + 1), "blobs", blob.name))
        paths[name] = link
    if current:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return paths


def break_off(root: Path, repo: str, name: str, content: bytes, total_bytes: int) -> None:
    """Leave a download of `name` that came as far as `content`."""
    blobs = root / ("models--" + repo.replace("/", "--")) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    blob = hashlib.sha256(name.encode()).hexdigest()
    (blobs / f"{blob}.incomplete").write_bytes(content)
    (blobs / f"{blob}.incomplete.json").write_text(json.dumps({"path": name, "size_bytes": total_bytes}))
