"""`llmrun list` and `llmrun rm`: models on this machine. Nothing here touches the network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from llmrun.app.library.first_look import first_look
from llmrun.errors import ModelNotFound, UsageError
from llmrun.gguf.text import printable
from llmrun.reports.library import Freed, KeptModel, Library, Removal
from llmrun.store.catalogue import Catalogue, load_catalogue
from llmrun.store.hf_cache import (
    CachedFile,
    PartialFile,
    cached_files,
    cached_repos,
    find_repo,
    hub_cache_dir,
    partial_files,
)
from llmrun.store.local import local_variants
from llmrun.store.resolve import NameRef, PathRef, RepoRef, catalogue_model, file_hint, parse_ref
from llmrun.store.variants import (
    RepositoryFile,
    Variant,
    choose,
    choose_local,
    helper_kind,
    matching,
    title,
    variants,
)

F = TypeVar("F", bound=RepositoryFile)


def library() -> Library:
    """The models in the Hugging Face cache, whoever put them there, and those of installed packages.

    Raises:
        UsageError: the user's catalogue has a mistake.
    """
    catalogue = load_catalogue()
    found = [model for repo in cached_repos() for model in _of_repo(repo, catalogue)]
    found += _of_packages(catalogue)
    models = tuple(sorted(found, key=lambda m: (m.repo or m.name, m.name)))
    root = hub_cache_dir()
    readable = os.access(root, os.R_OK | os.X_OK) or not os.path.lexists(root)
    return Library(models, root, _taken_bytes(models), readable)


def _taken_bytes(models: Sequence[KeptModel]) -> int:
    """What they take on the disk; contents that several share count once."""
    contents = {os.path.realpath(path) for model in models for path in model.paths}
    return sum(os.stat(path).st_size for path in contents if os.path.exists(path))


def _of_repo(repo: str, catalogue: Catalogue) -> Iterator[KeptModel]:
    """Whole models, sets with missing parts, helpers, and broken-off downloads."""
    files, partials = cached_files(repo), partial_files(repo)
    models = local_variants(repo)
    begun = {v.name: v for v in variants(part for part in partials if part.path)}
    for variant in models:
        started = None if variant.complete else begun.pop(variant.name, None)
        yield _kept(repo, variant, models, started, catalogue)
    for broken_off in begun.values():
        yield _broken_off(repo, broken_off, tuple(begun.values()), catalogue)
    helpers = {f.path: f for f in reversed(files) if f.path.lower().endswith(".gguf") and helper_kind(f.path)}
    for file in helpers.values():
        yield _helper(repo, file)
    for part in partials:
        if not part.path:
            used_s = _used_s(part.file)
            yield KeptModel("", "", part.size_bytes, "hub", (part.file,), used_s, repo, complete=False)


def typed_name(repo: str, variant: Variant[F], found: Sequence[Variant[F]], catalogue: Catalogue) -> str:
    """What to type for this very model: the catalogue's name where it has one."""
    tag = title(variant)
    if len(matching(found, tag)) != 1:
        tag = variant.name
    for model in catalogue.values():
        if model.hub.lower() == repo.lower():
            return model.name if tag.upper() == model.default.upper() else f"{model.name}:{tag}"
    return repo if len(found) == 1 and not variant.quant else f"{repo}:{tag}"


def _kept(
    repo: str,
    variant: Variant[CachedFile],
    found: Sequence[Variant[CachedFile]],
    started: Variant[PartialFile] | None,
    catalogue: Catalogue,
) -> KeptModel:
    size_bytes = variant.size_bytes + (started.size_bytes if started else 0)
    first = variant.files[0]
    kind, arch = first_look(first.file)
    return KeptModel(
        name=typed_name(repo, variant, found, catalogue),
        quant=title(variant),
        size_bytes=size_bytes,
        source="hub",
        paths=tuple(file.file for file in variant.files),
        used_s=max(file.used_s for file in variant.files),
        repo=repo,
        kind=kind,
        arch=arch,
        complete=variant.complete,
    )


def _broken_off(
    repo: str,
    variant: Variant[PartialFile],
    found: Sequence[Variant[PartialFile]],
    catalogue: Catalogue,
) -> KeptModel:
    totals = [part.total_bytes or 0 for part in variant.files]
    return KeptModel(
        name=typed_name(repo, variant, found, catalogue),
        quant=title(variant),
        size_bytes=variant.size_bytes,
        source="hub",
        paths=tuple(part.file for part in variant.files),
        used_s=max(_used_s(part.file) for part in variant.files),
        repo=repo,
        complete=False,
        total_bytes=sum(totals) if variant.complete and all(totals) else None,
    )


def _helper(repo: str, file: CachedFile) -> KeptModel:
    _, arch = first_look(file.file)
    kind, base = helper_kind(file.path) or "", file.path.rpartition("/")[2]
    return KeptModel("", base, file.size_bytes, "hub", (file.file,), file.used_s, repo, "", kind, arch)


def _of_packages(catalogue: Catalogue) -> Iterator[KeptModel]:
    for model in catalogue.values():
        for quant, source in model.files.items():
            try:
                path = source.locate()
                size_bytes = path.stat().st_size
            except (ModelNotFound, OSError):
                continue
            kind, arch = first_look(path)
            yield KeptModel(
                name=model.name if quant == model.default else f"{model.name}:{quant}",
                quant=quant,
                size_bytes=size_bytes,
                source="package",
                paths=(path,),
                used_s=_used_s(path),
                origin=source.distribution,
                kind=kind,
                arch=arch,
            )


def _used_s(path: Path) -> float:
    try:
        return path.stat().st_atime
    except OSError:
        return 0.0


def find_removal(ref: str) -> Removal:
    """What goes under the name `ref`: one quantization, or every model file of a repository named as such.

    Raises:
        UsageError: it is a path or comes in a package, which are not llmrun's to remove, or is ambiguous.
        ModelNotFound: nothing of it is on this machine.
    """
    wanted = parse_ref(ref)
    match wanted:
        case PathRef():
            raise UsageError(
                f"{printable(ref)} is a file given by its path; rm removes models of the Hugging Face cache",
                file_hint(ref, "delete the file yourself if nothing else needs it"),
            )
        case RepoRef():
            return _removal(ref, wanted.repo, wanted.tag)
        case NameRef():
            model = catalogue_model(wanted.name, load_catalogue())
            if model.hub:
                return _removal(ref, model.hub, wanted.tag, default=model.default or "-")
            source = model.files.get(wanted.tag) or model.files[model.default]
            raise UsageError(
                f"{model.name} comes in the Python package {source.distribution}",
                f"uninstall it: pip uninstall {source.distribution}",
            )


def _removal(ref: str, repo: str, tag: str, default: str = "") -> Removal:
    repo = find_repo(repo)
    files, partials = cached_files(repo), partial_files(repo)
    whole = local_variants(repo)
    begun = variants(part for part in partials if part.path)
    going: list[tuple[str, tuple[str, ...]]] = []
    if tag and matching(whole, tag):
        going = [_paths(choose(whole, tag, repo))]
    elif tag and matching(begun, tag):
        going = [_paths(choose(begun, tag, repo))]
    elif default and whole:
        going = [_paths(choose_local(whole, default))]
    elif not tag:
        going = [*map(_paths, whole), *map(_paths, begun)]
    paths = {path for _, found in going for path in found}
    everything = not tag and not default
    if everything:
        paths |= {file.path for file in files if file.path.lower().endswith(".gguf")}
    stopped = [part for part in partials if part.path in paths or (everything and not part.path)]
    if not paths and not stopped:
        raise ModelNotFound(f"{printable(ref)} is not on this machine", "see what is: llmrun list")
    sizes = {file.blob: file.size_bytes for file in files if file.path in paths}
    sizes |= {part.file: part.size_bytes for part in stopped}
    titles = dict.fromkeys(name for name, _ in going)
    return Removal(ref, repo, tuple(titles), tuple(sorted(paths)), sum(sizes.values()))


def _paths(variant: Variant[F]) -> tuple[str, tuple[str, ...]]:
    """A model's title and the paths of all its parts, also of those that are not whole yet."""
    return title(variant), (*(file.path for file in variant.files), *variant.missing)


def remove_models(removals: Sequence[Removal]) -> Iterator[Freed]:
    """Remove them one after the other; yields what each freed.

    Raises:
        WriteFailure: another program is fetching one of them, or the cache cannot be written.
    """
    from llmrun.store.hf_remove import remove

    for removal in removals:
        gone = remove(removal.repo, removal.paths)
        yield Freed(removal.name, gone.freed_bytes, gone.shared_bytes)
