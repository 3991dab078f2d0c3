"""Models on the Hub: what a repository offers under a name, and stand-ins made of headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmrun.errors import ModelNotFound, UsageError
from llmrun.gguf.text import printable
from llmrun.store.catalogue import Catalogue, load_catalogue
from llmrun.store.hub import Hub
from llmrun.store.listing import Listing
from llmrun.store.remote_header import fetch_headers
from llmrun.store.repo_files import RepoFile
from llmrun.store.resolve import NameRef, PathRef, RepoRef, ResolvedModel, catalogue_model, parse_ref
from llmrun.store.variants import Variant, choose, title, variants


@dataclass(frozen=True, slots=True)
class RemoteName:
    """A name that leads to a repository on the Hub: `repo`, and the quantization asked for, empty for none.

    `name`, `default` and `sampling` are the catalogue's, empty for a repository named as such.
    """

    ref: str
    repo: str
    tag: str = ""
    name: str = ""
    default: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as the Hub lists it, asked for by `name`; `variants` are the models in it."""

    name: RemoteName
    hub: Hub
    listing: Listing
    variants: tuple[Variant[RepoFile], ...]

    def chosen(self, tag: str) -> Variant[RepoFile]:
        """The model that `tag` names, whole. Raises `ModelNotFound` and `UsageError` as `choose`."""
        return whole(self, choose(self.variants, tag, self.listing.repo))


def remote_name(ref: str, catalogue: Catalogue | None = None) -> RemoteName | None:
    """Where on the Hub `ref` leads; None for a path and for what comes in a package.

    Raises `ModelNotFound` and `UsageError` for what can be no name.
    """
    match wanted := parse_ref(ref):
        case PathRef():
            return None
        case RepoRef():
            return RemoteName(ref, wanted.repo, wanted.tag)
        case NameRef():
            model = catalogue_model(wanted.name, load_catalogue() if catalogue is None else catalogue)
            if not model.hub:
                return None
            return RemoteName(ref, model.hub, wanted.tag, model.name, model.default, model.sampling)


def ask_hub(name: RemoteName, *, revision: str = "main", hub: Hub | None = None) -> Repository:
    """What the Hub has under `name`.

    Raises:
        ModelNotFound: no such repository or revision, or none that may be seen, or no model in it.
        NetworkFailure: the Hub cannot be asked.
    """
    hub = hub or Hub()
    listing = hub.listing(name.repo, revision)
    found = variants(listing.files)
    if not found:
        raise ModelNotFound(f"{listing.repo} holds no GGUF model", "choose a repository of GGUF files")
    return Repository(name, hub, listing, found)


def whole(repository: Repository, variant: Variant[RepoFile]) -> Variant[RepoFile]:
    """`variant`, of which no part may be missing. Raises `ModelNotFound`."""
    if variant.complete:
        return variant
    raise ModelNotFound(
        f"{repository.listing.repo} has no {printable(variant.missing[0])}, so the model is incomplete there",
        "choose another quantization or repository",
    )


@dataclass(frozen=True, slots=True)
class StandIn:
    """A model on the Hub, of which only headers are here: the paths of `model` are sparse copies.

    `pull_name` names it exactly. `received_bytes` came over the network for the headers, now.
    """

    model: ResolvedModel
    pull_name: str
    paths: tuple[str, ...]
    received_bytes: int


def stand_in(repository: Repository, variant: Variant[RepoFile], cache_dir: Path) -> StandIn:
    """Headers of all files of `variant`. Raises as `fetch_headers`."""
    name, listing = repository.name, repository.listing
    headers = fetch_headers(repository.hub, listing, variant.files, cache_dir)
    model = ResolvedModel(
        name.ref,
        headers.files[0],
        "catalogue" if name.name else "hub",
        headers.files,
        name.name,
        variant.quant,
        listing.repo,
        listing.commit,
        name.sampling,
    )
    return StandIn(
        model,
        exact_name(repository, variant),
        tuple(file.path for file in variant.files),
        headers.received_bytes,
    )


def exact_name(repository: Repository, variant: Variant[RepoFile]) -> str:
    """How to name this very model: as the user did, with its quantization where there are several."""
    name = repository.name.name or repository.listing.repo
    quant = title(variant)
    only = len(repository.variants) == 1 and not repository.name.name
    if only or quant.upper() == repository.name.default.upper():
        return name
    return f"{name}:{quant}"


def check_tags(name: RemoteName, quant: str) -> str:
    """The quantization asked for, given after the colon or apart from the name; empty for none.

    Raises `UsageError` where both are given and differ.
    """
    if name.tag and quant and name.tag.lower() != quant.lower():
        raise UsageError(
            f"{printable(name.ref)} names {printable(name.tag)}, --quant {printable(quant)}",
            "name one quantization",
        )
    return quant or name.tag
