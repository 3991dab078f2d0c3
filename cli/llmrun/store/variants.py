"""The models in a repository: which files belong together, which quantization each is, which one is meant.

A repository on the Hub holds one model in many quantizations, told apart by file names alone. By custom a
name ends in the quantization (`name-Q4_K_M.gguf`), or the folder is called after it; large files are split
(`-00001-of-00003`, llama.cpp, tools/gguf-split); files that help a model to see or to guess ahead lie beside
it. The order of choice and the helpers' names are those of llama.cpp (common/download.cpp); unlike there, a
tag means the whole quantization and never a part of one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from llmrun.errors import ModelNotFound, UsageError
from llmrun.gguf.text import printable

PREFERRED = ("Q4_K_M", "Q8_0")
"""Taken before the others where no quantization is named."""

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\.gguf)\Z", re.S | re.I)
_TAIL = r"(?:_(?:[0-9]{1,2}|[A-Z]{1,2}|XXS|XXL|KSS|MOE|R[0-9]))*(?:-X{1,2}L)?"
_QUANT = re.compile(
    rf"(?<![A-Z0-9])(?:(?:UD|I)-)?(?:(?:I?Q[1-9]|TQ[1-9]|MXFP[0-9]|NVFP[0-9]){_TAIL}|B?F16|F32|FP(?:8|16|32))(?![A-Z0-9])",
    re.I,
)
_PROJECTOR = "an image or audio projector"
_DRAFT = "a draft head for another model"
_HELPERS = {
    "mmproj": _PROJECTOR,
    "imatrix": "an importance matrix",
    "mtp": _DRAFT,
    "eagle3": _DRAFT,
    "dflash": _DRAFT,
    "dspark": _DRAFT,
}


class RepositoryFile(Protocol):
    """What is needed of a file: `path` in the repository, with forward slashes, and its size."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=RepositoryFile)


@dataclass(frozen=True, slots=True)
class Variant(Generic[F]):
    """One quantization of the model. `files` are its parts in order, `n_parts` is how many belong to it.

    `quant` is spelt as in the file's name, empty where the name tells nothing.
    """

    quant: str
    files: tuple[F, ...]
    n_parts: int = 1

    @property
    def name(self) -> str:
        """Path of the model without its ending and part number: what tells it from all others."""
        return whole_stem(self.files[0].path)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts there are."""
        return sum(file.size_bytes for file in self.files)

    @property
    def complete(self) -> bool:
        """True where no part is missing."""
        return len(self.files) == self.n_parts

    @property
    def missing(self) -> tuple[str, ...]:
        """Paths of the parts that are not there."""
        found = split_name(self.files[0].path)
        if found is None or self.complete:
            return ()
        present = {file.path for file in self.files}
        paths = (part_name(found, no) for no in range(1, found.count + 1))
        return tuple(path for path in paths if path not in present)


@dataclass(frozen=True, slots=True)
class SplitName:
    """The name of a part: `stem` before its number, `end` the file's ending."""

    stem: str
    no: int
    count: int
    end: str


def split_name(path: str) -> SplitName | None:
    """`path` as part of a split set; None where its name is not one."""
    found = _SPLIT.match(path)
    if found is None:
        return None
    no, count = int(found["no"]), int(found["count"])
    return SplitName(found["stem"], no, count, found["end"]) if 1 <= no <= count else None


def part_name(name: SplitName, no: int) -> str:
    """The path of part `no` of the same set."""
    return f"{name.stem}-{no:05d}-of-{name.count:05d}{name.end}"


def helper_kind(path: str) -> str | None:
    """What the file is where it helps a model and is none itself; None for a model."""
    *folders, base = whole_stem(path).lower().split("/")
    words = re.split(r"[-._ ]+", base)
    for word, kind in _HELPERS.items():
        if word in (words[0], words[-1]) or word in folders:
            return kind
    return _PROJECTOR if "mmproj" in words else None


def variants(files: Iterable[F]) -> tuple[Variant[F], ...]:
    """The models among `files`, in the order in which they come; helpers and other files are left out."""
    sets: dict[tuple[str, int, str], list[tuple[int, F]]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf") or helper_kind(file.path) is not None:
            continue
        part = split_name(file.path)
        key = (part.stem, part.count, part.end) if part else (file.path, 1, "")
        sets.setdefault(key, []).append((part.no if part else 1, file))
    parts = [tuple(file for _, file in sorted(s, key=lambda entry: entry[0])) for s in sets.values()]
    labels = _labels([whole_stem(found[0].path) for found in parts])
    counts = [count for _, count, _ in sets]
    return tuple(Variant(*entry) for entry in zip(labels, parts, counts, strict=True))


def matching(found: Sequence[Variant[F]], tag: str) -> Sequence[Variant[F]]:
    """Those that `tag` can mean: by quantization in any letter case, else by the file's name.

    Several only where nothing tells which is meant: of those with one quantization, an exact file name does.
    """
    labelled = [v for v in found if v.quant and v.quant.lower() == tag.lower()]
    exact = [v for v in found if tag in (v.name, _base(v.name))]
    named = [v for v in found if tag.lower() in (v.name.lower(), _base(v.name).lower())]
    return next((m for m in (labelled, exact, named) if len(m) == 1), labelled or exact or named)


def choose(found: Sequence[Variant[F]], tag: str, repo: str) -> Variant[F]:
    """The one that `tag` names, by the rule of `matching`.

    Raises:
        ModelNotFound: none, with the candidates.
        UsageError: several, with the candidates.
    """
    matches = matching(found, tag)
    if len(matches) == 1:
        return matches[0]
    where, what = printable(repo), printable(tag)
    if matches:
        raise UsageError(
            f"{what} is ambiguous in {where}: {_listed(_file_names(matches))}",
            "give one of these names after the colon",
        )
    if not found:
        raise ModelNotFound(f"{where} holds no GGUF model", "choose a repository of GGUF files")
    raise ModelNotFound(f"{where} has no {what}", f"it comes as {titles(found)}")


def choose_local(found: Sequence[Variant[F]], default: str = "") -> Variant[F]:
    """The one to take where none is named: complete before incomplete, the default if there is one, Q4_K_M,
    Q8_0, then the first.

    `found` must not be empty.
    """
    whole = [v for v in found if v.complete] or list(found)
    for quant in filter(None, (default.upper(), *PREFERRED)):
        for variant in whole:
            if variant.quant.upper() == quant:
                return variant
    return whole[0]


def title(variant: Variant[F]) -> str:
    """How a user names it: its quantization, its file's name where that tells none."""
    return variant.quant or _base(variant.name)


def titles(found: Iterable[Variant[F]]) -> str:
    """All of them, as a list to read."""
    return _listed(title(variant) for variant in found)


def _file_names(matches: Sequence[Variant[F]]) -> Iterable[str]:
    bases = [_base(v.name) for v in matches]
    return bases if len(set(bases)) == len(bases) else [v.name for v in matches]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(printable(name) for name in dict.fromkeys(names))


def whole_stem(path: str) -> str:
    """`path` without its ending and part number."""
    part = split_name(path)
    return part.stem if part else re.sub(r"\.gguf\Z", "", path, flags=re.I)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _labels(stems: Sequence[str]) -> list[str]:
    """Quantization of each model. Of several with the same, what follows it in the name tells them apart;
    names without any are told apart by what they do not have in common."""
    found = [_quant(stem) for stem in stems]
    counts = Counter(quant.lower() for quant, _ in found)
    labels = [quant + rest if counts[quant.lower()] > 1 else quant for quant, rest in found]
    common = _common_words([_base(stem) for stem in stems])
    return [
        label or (_base(stem)[common:] if len(stems) > 1 else "")
        for label, stem in zip(labels, stems, strict=True)
    ]


def _quant(stem: str) -> tuple[str, str]:
    """The quantization in a name and what follows it there; folders are asked where the name tells none."""
    for name in reversed(stem.split("/")):
        if labels := [*_QUANT.finditer(name)]:
            return labels[-1][0], name[labels[-1].end() :] if name == _base(stem) else ""
    return "", ""


def _common_words(names: Sequence[str]) -> int:
    """Length of the common beginning of `names` that ends where a word does."""
    end = 0
    for at, letters in enumerate(zip(*names, strict=False), 1):
        if len(set(letters)) > 1:
            break
        if letters[0] in "-._":
            end = at
    return end
