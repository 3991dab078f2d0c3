"""What each quantization of a repository would take on this machine, from one header and a listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrun.app.memory.attention import check_cache_types
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.app.plan import context_params, model_params
from llmrun.config.layers import Effective
from llmrun.gguf.check import other_kind
from llmrun.gguf.facts import model_facts
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import cache_sizes, cells_of, layer_state_bytes
from llmrun.memory.choice import QuantFit, best, quant_fit, resized
from llmrun.memory.plan import DeviceInfo
from llmrun.reports.pull import Offers, QuantOffer
from llmrun.store.hf_cache import CachedFile, PartialFile, cached_files, find_repo, partial_files
from llmrun.store.remote import Repository, stand_in
from llmrun.store.remote_header import kept_header
from llmrun.store.repo_files import RepoFile
from llmrun.store.variants import PREFERRED, Variant, title


@dataclass(frozen=True, slots=True)
class _Reference:
    """The quantization whose header was read. `tensor_share` of the tensors' bytes are loaded for a
    conversation, `header_bytes` are no tensors."""

    facts: MemoryFacts
    name: str
    kind: str
    n_params: int
    header_bytes: int
    tensor_share: float
    received_bytes: int

    def like(self, size_bytes: int) -> MemoryFacts:
        """The same model in files of `size_bytes`."""
        tensor_bytes = max(0, size_bytes - self.header_bytes)
        return resized(self.facts, int(tensor_bytes * self.tensor_share))


def offered(
    repository: Repository,
    settings: Effective,
    devices: Sequence[DeviceInfo],
    reserve_bytes: int,
    cache_dir: Path,
) -> tuple[Offers, tuple[Variant[RepoFile], ...]]:
    """The offers of a repository, and the models they are, in the same order.

    Raises:
        NetworkFailure, ModelNotFound: the header cannot be had.
        NotAModel: it is none.
        UsageError: a cache type or a device that cannot be.
    """
    found = tuple(sorted((v for v in repository.variants if v.complete), key=lambda v: v.size_bytes))
    found = found or tuple(sorted(repository.variants, key=lambda v: v.size_bytes))
    reference = _reference(repository, found, cache_dir)
    facts = reference.facts
    model, context = model_params(settings, ""), context_params(settings, facts.n_ctx_train)
    plan = memory_plan(facts, model, context)
    check_cache_types(facts, plan)
    fits = [
        quant_fit(title(v), _bits(v, reference), reference.like(v.size_bytes), plan, devices, reserve_bytes)
        for v in found
    ]
    here = _here(repository)
    quants = tuple(_offer(v, fit, here) for v, fit in zip(found, fits, strict=True))
    begun = _begun(quants)
    kv_bytes = sum(size.size_bytes for size in cache_sizes(facts, plan))
    kv_bytes += sum(layer_state_bytes(layer, plan) for layer in facts.layers)
    offers = Offers(
        ref=repository.name.ref,
        repo=repository.listing.repo,
        commit=repository.listing.commit,
        title=reference.name,
        kind=reference.kind,
        n_params=reference.n_params,
        n_ctx=cells_of(facts, plan).n_ctx,
        type_k=plan.type_k,
        type_v=plan.type_v,
        kv_bytes=kv_bytes,
        quants=quants,
        marked=best(fits, repository.name.default) if begun is None else begun,
        received_bytes=reference.received_bytes,
    )
    return offers, found


def _bits(variant: Variant[RepoFile], reference: _Reference) -> float:
    """Mean bits a weight; the header, in small models a good part of the file, is none of them."""
    tensor_bytes = max(0, variant.size_bytes - reference.header_bytes)
    return 8 * tensor_bytes / reference.n_params if reference.n_params else 0.0


def _offer(variant: Variant[RepoFile], fit: QuantFit, here: dict[str, int]) -> QuantOffer:
    sizes = [here.get(file.blob_name, here.get(file.path, 0)) for file in variant.files]
    have = sum(map(min, sizes, (file.size_bytes for file in variant.files)))
    return QuantOffer(
        fit.quant, variant.size_bytes, variant.n_parts, have, fit.bits, fit.sum_bytes, fit.where
    )


def _begun(quants: Sequence[QuantOffer]) -> int | None:
    """The one that fits and of which most is here though not all: a pull that is run again goes on with it,
    even if the free memory, and with it the best choice, has changed meanwhile."""
    begun = [i for i, q in enumerate(quants) if q.here_bytes and not q.here and q.where not in (None, "none")]
    return max(begun, key=lambda index: quants[index].here_bytes, default=None)


def _here(repository: Repository) -> dict[str, int]:
    """Bytes on this machine of each content, by its digest; by its path where links are not possible, so that
    it is called by that. Those of broken-off downloads are included."""
    repo = find_repo(repository.listing.repo)
    files: Sequence[CachedFile] = cached_files(repo)
    partials: Sequence[PartialFile] = partial_files(repo)
    begun = {partial.file.name.partition(".")[0]: partial.size_bytes for partial in partials}
    unlinked = [f for f in files if f.blob == f.file and f.commit == repository.listing.commit]
    whole = {file.blob.name: file.size_bytes for file in files}
    return begun | whole | {file.path: file.size_bytes for file in unlinked}


def _reference(repository: Repository, found: Sequence[Variant[RepoFile]], cache_dir: Path) -> _Reference:
    """Read one header: one that is here already, else of the quantization that is likeliest to be taken."""

    def rank(variant: Variant[RepoFile]) -> tuple[bool, int]:
        kept = all(kept_header(repository.listing, file, cache_dir) for file in variant.files)
        order = (repository.name.default.upper(), *PREFERRED)
        usual = variant.quant.upper()
        return not kept, order.index(usual) if usual in order else len(order)

    read = stand_in(repository, min(found, key=rank), cache_dir)
    headers = [read_header(path) for path in read.model.parts]
    facts = memory_facts(headers[0], headers[1:])
    tensors = [tensor for header in headers for tensor in header.tensors]
    tensor_bytes = sum(tensor.size_bytes for tensor in tensors)
    loaded_bytes = sum(weight.size_bytes for weight in facts.weights)
    return _Reference(
        facts,
        model_facts(headers[0]).name,
        other_kind(headers[0].metadata) or "",
        sum(tensor.n_params for tensor in tensors),
        sum(header.file_bytes or 0 for header in headers) - tensor_bytes,
        loaded_bytes / tensor_bytes if tensor_bytes else 1.0,
        read.received_bytes,
    )
