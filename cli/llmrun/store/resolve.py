"""From what the user typed to a file: path, `user/repo[:QUANT]`, or a name of the catalogue.

MODEL is a path if it begins with `/`, `./`, `../` or `~`, ends in .gguf, or exists as a file; else a
repository if it holds one slash before the first colon; else a catalogue name with an optional `:QUANT`.
Nothing here touches the network: repositories are looked up in the Hugging Face cache alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from llmrun.errors import LlmrunError, ModelNotFound, UsageError
from llmrun.gguf.check import check_part
from llmrun.gguf.reader import read_header
from llmrun.gguf.text import printable
from llmrun.store.catalogue import Catalogue, CatalogueModel, load_catalogue
from llmrun.store.hf_cache import is_repo_name
from llmrun.store.local import find_local
from llmrun.store.variants import part_name, split_name, whole_stem

_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this machine. `path` is the file to open, the first of `parts` where it is split.

    `name` is that of the catalogue; `quant` the quantization by the catalogue or the file's name; `repo` and
    `commit` say from which repository on the Hub the files came. All are empty for a path. `sampling` is what
    the catalogue recommends.
    """

    ref: str
    path: Path
    source: Literal["path", "hub", "catalogue"]
    parts: tuple[Path, ...]
    name: str = ""
    quant: str = ""
    repo: str = ""
    commit: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PathRef:
    """A file named by its path."""

    path: str


@dataclass(frozen=True, slots=True)
class RepoRef:
    """A repository on the Hub, `user/name`, and the quantization asked for, empty for none."""

    repo: str
    tag: str = ""


@dataclass(frozen=True, slots=True)
class NameRef:
    """A name of the catalogue, and the quantization asked for, empty for none."""

    name: str
    tag: str = ""


def parse_ref(ref: str) -> PathRef | RepoRef | NameRef:
    """What `ref` names; whether there is such a thing is not looked at.

    Raises `UsageError` where it is empty or has nothing after a colon, `ModelNotFound` where nothing can have
    that name.
    """
    if not ref.strip():
        raise UsageError("the model's name is empty", "give a name or the path of a .gguf file")
    if is_path(ref):
        return PathRef(ref)
    name, colon, tag = ref.partition(":")
    if colon and not tag.strip():
        raise UsageError(f"{printable(ref)} names no quantization after the colon", "leave the colon out")
    if "/" not in name:
        return NameRef(name, tag)
    if not is_repo_name(name):
        raise ModelNotFound(
            f"{printable(name)} can be neither a repository nor a file",
            "write user/repository, or the path of a .gguf file",
        )
    return RepoRef(name, tag)


def is_path(ref: str) -> bool:
    """Whether `ref` names a file rather than a repository or a catalogue entry."""
    return (
        ref.startswith(_PATH_STARTS)
        or os.path.isabs(ref)
        or ref.lower().endswith(".gguf")
        or ref.partition(":")[0].count("/") > 1
        or os.path.isfile(ref)
    )


def file_hint(ref: str, otherwise: str) -> str:
    """What to do where no file `ref` is meant: a file of a repository is named without its ending."""
    repo, _, file = ref.partition(":")
    if not (file and is_repo_name(repo)):
        return otherwise
    return f"a file of a repository is named without its ending: {printable(f'{repo}:{whole_stem(file)}')}"


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
    found = split_name(path.name)
    if found is None:
        return (path,)
    parts: list[Path] = []
    for no in range(1, found.count + 1):
        part = path.with_name(part_name(found, no))
        if not os.path.exists(part):
            raise ModelNotFound(
                f"part {no} of {found.count} is missing: there is no file {printable(str(part))}",
                file_hint(str(path), "put all parts of the model into one folder"),
            )
        parts.append(part)
    return tuple(parts)


def _by_path(ref: str) -> ResolvedModel:
    path = _expand(ref)
    parts = _split_parts(path)
    if len(parts) == 1 and _is_absent(path):
        hint = "check the path; a repository of the Hub is named user/repo"
        raise ModelNotFound(f"there is no file {printable(ref)}", file_hint(ref, hint))
    _check_parts(parts)
    return ResolvedModel(ref, parts[0], "path", parts)


def _is_absent(path: Path) -> bool:
    """False also where a folder on the way may not be entered: whoever reads the file says so."""
    try:
        os.lstat(path)
    except PermissionError:
        return False
    except (OSError, ValueError):
        return True
    return False


def _check_parts(parts: Sequence[Path]) -> None:
    for no, part in enumerate(parts[1:], 1):
        check_part(read_header(part), no=no, count=len(parts), name=str(part))


def _by_repo(ref: str, wanted: RepoRef, root: Path | None, *, pull: str, default: str = "") -> ResolvedModel:
    """The model of a repository in the cache; `pull` names it in the command that fetches it, `default` is
    the quantization to take first where none is asked for."""
    variant = find_local(wanted.repo, wanted.tag, root, pull=pull, default=default)
    parts = tuple(part.file for part in variant.files)
    _check_parts(parts)
    first = variant.files[0]
    return ResolvedModel(ref, first.file, "hub", parts, "", variant.quant, first.repo, first.commit)


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
    hint = f"did you mean {', '.join(near)}?"
    if not near:
        hint = "`llmrun pull --list` shows known names; or give user/repo, or the path of a .gguf file"
    return ModelNotFound(f"there is no model named {printable(name)}", hint)


def catalogue_model(name: str, catalogue: Catalogue) -> CatalogueModel:
    """The entry that `name` means. Raises `ModelNotFound` with names like it, `UsageError` if ambiguous."""
    return catalogue[_pick(name, catalogue, _unknown_name(name, catalogue), "models")]


def _by_name(ref: str, wanted: NameRef, catalogue: Catalogue, root: Path | None) -> ResolvedModel:
    model = catalogue_model(wanted.name, catalogue)
    name = model.name
    if model.hub:
        pull = f"{name}:{wanted.tag}" if wanted.tag else name
        found = _by_repo(ref, RepoRef(model.hub, wanted.tag), root, pull=pull, default=model.default)
        return replace(found, source="catalogue", name=name, sampling=model.sampling)
    no_quant = ModelNotFound(
        f"{name} has no {printable(wanted.tag)}", f"it comes as {', '.join(model.files)}"
    )
    quant = _pick(wanted.tag, model.files, no_quant, "quantizations") if wanted.tag else model.default
    path = model.files[quant].locate()
    return ResolvedModel(ref, path, "catalogue", (path,), name, quant, sampling=model.sampling)


def resolve(ref: str, *, catalogue: Catalogue | None = None, root: Path | None = None) -> ResolvedModel:
    """The model that `ref` names; `catalogue` is by default llmrun's with the user's, `root` the folder of
    the Hugging Face cache.

    Raises `ModelNotFound` where there is none on this machine, with the command that pulls it, `NotAModel`
    where a part of a split set is broken, `UsageError` where the name is empty or ambiguous.
    """
    wanted = parse_ref(ref)
    match wanted:
        case PathRef():
            return _by_path(wanted.path)
        case RepoRef():
            return _by_repo(ref, wanted, root, pull=ref)
        case NameRef():
            return _by_name(ref, wanted, load_catalogue() if catalogue is None else catalogue, root)
