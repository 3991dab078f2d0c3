"""From what the user typed to a file: path, `user/repo[:QUANT]`, or a name of the catalogue.

MODEL is a path if it begins with `/`, `./`, `../` or `~`, ends in .gguf, or exists as a file; else a
repository if it holds one slash; else a catalogue name with an optional `:QUANT`. Nothing here touches
the network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llmrun.errors import LlmrunError, ModelNotFound, UsageError
from llmrun.gguf.check import check_part
from llmrun.gguf.reader import read_header
from llmrun.gguf.text import printable
from llmrun.store.catalogue import Catalogue, CatalogueModel, load_catalogue

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf\Z", re.DOTALL)
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this machine. `path` is the file to open, the first of `parts` where it is split.

    `name` and `quant` are those of the catalogue and empty for a path; `sampling` what the catalogue
    recommends.
    """

    ref: str
    path: Path
    source: Literal["path", "catalogue"]
    parts: tuple[Path, ...]
    name: str = ""
    quant: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


def is_path(ref: str) -> bool:
    """Whether `ref` names a file rather than a repository or a catalogue entry."""
    return (
        ref.startswith(_PATH_STARTS)
        or os.path.isabs(ref)
        or ref.lower().endswith(".gguf")
        or ref.count("/") > 1
        or os.path.isfile(ref)
    )


def lasting_ref(ref: str) -> str:
    """`ref` as it names the same model from any folder."""
    return os.path.abspath(os.path.expanduser(ref)) if is_path(ref) else ref


def _expand(ref: str) -> Path:
    try:
        return Path(ref).expanduser()
    except RuntimeError:
        raise ModelNotFound(f"there is no home folder for {printable(ref)}", "write the path out") from None


def _split_parts(path: Path) -> tuple[Path, ...]:
    """All files of the split set that `path` belongs to, in order; `path` alone where it is whole."""
    found = _SPLIT.match(path.name)
    if found is None:
        return (path,)
    no, count = int(found["no"]), int(found["count"])
    if not 1 <= no <= count:
        return (path,)
    parts: list[Path] = []
    for i in range(1, count + 1):
        part = path.with_name(f"{found['stem']}-{i:05d}-of-{count:05d}.gguf")
        if not os.path.exists(part):
            raise ModelNotFound(
                f"part {i} of {count} is missing: there is no file {printable(str(part))}",
                "put all parts of the model into one folder",
            )
        parts.append(part)
    return tuple(parts)


def _by_path(ref: str) -> ResolvedModel:
    path = _expand(ref)
    parts = _split_parts(path)
    if not os.path.lexists(path) and len(parts) == 1:
        raise ModelNotFound(f"there is no file {printable(ref)}", "check the path")
    for no, part in enumerate(parts[1:], 1):
        check_part(read_header(part), no=no, count=len(parts), name=str(part))
    return ResolvedModel(ref, parts[0], "path", parts)


def _pick(wanted: str, choices: Iterable[str], missing: LlmrunError, what: str) -> str:
    """The choice that `wanted` names: an exact spelling wins, else letter case does not matter."""
    names = list(choices)
    if wanted in names:
        return wanted
    matches = [name for name in names if name.lower() == wanted.lower()]
    if len(matches) > 1:
        candidates = ", ".join(matches)
        raise UsageError(f"{printable(wanted)} is ambiguous: the {what} are {candidates}", "give one exactly")
    if not matches:
        raise missing
    return matches[0]


def _unknown_name(name: str, catalogue: Catalogue) -> ModelNotFound:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), list(catalogue), n=3, cutoff=0.5)
    known = ", ".join(near or list(catalogue)[:8])
    hint = f"did you mean {known}?" if near else f"known names: {known}; or give the path of a .gguf file"
    return ModelNotFound(f"there is no model named {printable(name)}", hint)


def _by_name(ref: str, catalogue: Catalogue) -> ResolvedModel:
    wanted, _, tag = ref.partition(":")
    name = _pick(wanted, catalogue, _unknown_name(wanted, catalogue), "models")
    model: CatalogueModel = catalogue[name]
    have = ", ".join(model.files)
    no_quant = ModelNotFound(f"{name} has no {printable(tag)}", f"it comes as {have}")
    quant = _pick(tag, model.files, no_quant, "quantizations") if tag else model.default
    path = model.files[quant].locate()
    return ResolvedModel(ref, path, "catalogue", (path,), name, quant, model.sampling)


def resolve(ref: str, *, catalogue: Catalogue | None = None) -> ResolvedModel:
    """The model that `ref` names; `catalogue` is by default the one that ships with llmrun.

    Raises `ModelNotFound` where there is none on this machine, `NotAModel` where a part of a split set is
    broken, `UsageError` where the name is empty or ambiguous.
    """
    if not ref.strip():
        raise UsageError("the model's name is empty", "give a name or the path of a .gguf file")
    if is_path(ref):
        return _by_path(ref)
    if "/" in ref:
        raise ModelNotFound(
            f"{printable(ref)} is not on this machine",
            "this version does not download models; give the path of a .gguf file",
        )
    return _by_name(ref, load_catalogue() if catalogue is None else catalogue)
