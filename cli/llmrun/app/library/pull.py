"""`llmrun pull`: look at a repository, choose one of its quantizations, fetch it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from llmrun.app.library.asking import LISTING_LIMIT_S, asked
from llmrun.app.library.first_look import first_look
from llmrun.app.settings import SettingSources
from llmrun.config.dirs import user_cache_dir
from llmrun.errors import DoesNotFit, UsageError
from llmrun.gguf.text import printable
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES
from llmrun.reports.download import DownloadEvent, FileDone, HubAwaited
from llmrun.reports.pull import Offers, Pulled, PulledFile
from llmrun.store.remote import RemoteName, Repository, ask_hub, check_tags, exact_name, remote_name, whole
from llmrun.store.repo_files import RepoFile
from llmrun.store.resolve import PathRef, file_hint, parse_ref, resolve
from llmrun.store.variants import Variant, title
from llmrun.units import format_bytes


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to fetch; `quant` may be named apart from `ref`, `named` and `reserve_bytes` are those of an
    estimate."""

    ref: str
    sources: SettingSources
    quant: str = ""
    revision: str = "main"
    named: tuple[tuple[str, int], ...] = ()
    reserve_bytes: int = DEFAULT_RESERVE_BYTES


@dataclass(frozen=True, slots=True)
class Pull:
    """A repository that was looked up, and the quantization asked for, empty for none."""

    request: PullRequest
    repository: Repository
    tag: str

    def named(self, tag: str) -> Variant[RepoFile]:
        """The model that `tag` names. Raises `ModelNotFound` and `UsageError` with the candidates."""
        return self.repository.chosen(tag)

    def offers(self) -> Generator[HubAwaited, None, tuple[Offers, tuple[Variant[RepoFile], ...]]]:
        """What each quantization would take on this machine, and the models in the same order.

        Raises:
            NetworkFailure, ModelNotFound, NotAModel: the header they follow from cannot be had.
            UsageError: a setting or device that cannot be.
        """
        from llmrun.app.library.offers import offered
        from llmrun.app.memory.devices import DeviceProbe, with_named
        from llmrun.app.plan import model_params

        sources = self.request.sources
        settings = sources.resolve()
        found, _ = DeviceProbe(model_params(settings, "").rpc).result()
        devices = with_named(found, dict(self.request.named))
        cache_dir, reserve_bytes = user_cache_dir(sources.env), self.request.reserve_bytes
        return (
            yield from asked(lambda: offered(self.repository, settings, devices, reserve_bytes, cache_dir))
        )

    def fetch(self, variant: Variant[RepoFile]) -> Generator[DownloadEvent, None, Pulled]:
        """Bring all files of a model into the Hugging Face cache.

        Raises:
            NetworkFailure, ModelNotFound: the Hub or the network fails, or a file or part is missing there.
            WriteFailure: there is no room, or the cache cannot be written.
        """
        from llmrun.store.download import download

        repository, variant = self.repository, whole(self.repository, variant)
        done: dict[str, FileDone] = {}
        for event in download(repository.hub, repository.listing, variant.files):
            if isinstance(event, FileDone):
                done[event.path] = event
            yield event
        files = tuple(
            PulledFile(
                file.path,
                done[file.path].file,
                done[file.path].size_bytes,
                file.sha256,
                done[file.path].received_bytes,
                done[file.path].verified,
            )
            for file in variant.files
        )
        name, listing = exact_name(repository, variant), repository.listing
        kind, _ = first_look(files[0].file)
        return Pulled(self.request.ref, name, listing.repo, listing.commit, title(variant), files, kind)


def begin_pull(request: PullRequest) -> Generator[HubAwaited, None, Pull | Pulled]:
    """Ask the Hub what there is under a name; what comes in a Python package is there already.

    Raises:
        UsageError: the name is a path, or names two quantizations.
        ModelNotFound: there is no such model, here or on the Hub.
        NetworkFailure: the Hub cannot be asked.
    """
    name = wanted_model(request)
    if name is None:
        return _packaged(request)
    tag = check_tags(name, request.quant)
    repository = yield from asked(lambda: ask_hub(name, revision=request.revision), LISTING_LIMIT_S)
    return Pull(request, repository, tag)


def wanted_model(request: PullRequest) -> RemoteName | None:
    """Where on the Hub the model is; None for one that comes in a Python package. Raises as `begin_pull`."""
    if isinstance(parse_ref(request.ref), PathRef):
        raise UsageError(
            f"{printable(request.ref)} is the path of a file, and pull fetches from the Hub",
            file_hint(request.ref, "name a repository, user/repo, or a model of the catalogue"),
        )
    return remote_name(request.ref)


def _packaged(request: PullRequest) -> Pulled:
    """The model of a package that is installed; `resolve` says how to install one that is not."""
    quant = f":{request.quant}" if request.quant and ":" not in request.ref else ""
    model = resolve(request.ref + quant)
    size_bytes = model.path.stat().st_size
    file = PulledFile(model.path.name, model.path, size_bytes, "", 0, "size")
    return Pulled(request.ref, model.name, "", "", model.quant, (file,))


def marked(offers: Offers) -> int:
    """The index of the quantization to take unasked. Raises `DoesNotFit` where none fits."""
    if offers.marked is not None:
        return offers.marked
    least = min(offers.quants, key=lambda quant: quant.sum_bytes)
    raise DoesNotFit(
        f"no quantization of {offers.repo} fits this machine: the smallest, {printable(least.quant)}, "
        f"takes {format_bytes(least.sum_bytes)} with {offers.n_ctx:,} tokens of context",
        f"llmrun pull {offers.repo} --quant NAME fetches one all the same; or take a smaller model or -c",
    )
