"""Before a model is loaded: one that is not on this machine is fetched, if the user wants that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from types import FrameType

    from llmrun.app.library.pull import Pull
    from llmrun.app.loading import OpenRequest
    from llmrun.errors import ModelNotFound
    from llmrun.store.repo_files import RepoFile
    from llmrun.store.variants import Variant
    from llmrun.ui.streams import Streams

PullFlag = Annotated[
    bool, typer.Option("--pull", help="fetch the model from the Hub if it is not on this machine")
]


def ensure_here(request: OpenRequest, *, pull: bool, quiet: bool) -> bool:
    """Fetch the model of `request` if it is on the Hub alone: with `pull`, or where the user says yes. True
    if that was done.

    Raises:
        ModelNotFound: it is not here, and nobody wants it fetched; the hint is the command that does.
        NetworkFailure, WriteFailure, Interrupted: the download failed.
    """
    missing = _missing(request)
    if missing is None:
        return False
    from llmrun.ui.ask import can_ask
    from llmrun.ui.streams import Streams

    streams = Streams.of_process()
    if not pull and not can_ask(streams):
        raise missing
    _fetch(request, missing, streams, ask=not pull, quiet=quiet)
    return True


@contextmanager
def ctrl_c_raises() -> Iterator[None]:
    """While active, Ctrl-C raises `Interrupted`, as it does outside a chat."""
    import signal

    from llmrun.errors import Interrupted

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted("interrupted")

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _missing(request: OpenRequest) -> ModelNotFound | None:
    """Why a model is not here, where the Hub may have it; every other fault is left to the load."""
    from llmrun.errors import ModelNotFound, NotAModel, UsageError
    from llmrun.store.resolve import is_path, resolve

    ref = _ref(request)
    if not ref or is_path(ref):
        return None
    try:
        resolve(ref)
    except ModelNotFound as error:
        from llmrun.store.remote import remote_name

        try:
            return error if remote_name(ref) is not None else None
        except (ModelNotFound, UsageError):
            return None
    except (NotAModel, UsageError):
        return None
    return None


def _ref(request: OpenRequest) -> str:
    return request.model or request.sources.resolve().context.model or ""


def _fetch(request: OpenRequest, missing: ModelNotFound, streams: Streams, *, ask: bool, quiet: bool) -> None:
    from llmrun.app.library.pull import PullRequest, begin_pull
    from llmrun.commands.pull import fetch_shown
    from llmrun.commands.waiting import shown
    from llmrun.errors import NetworkFailure
    from llmrun.reports.pull import Pulled
    from llmrun.ui.ask import ask_yes
    from llmrun.ui.visible import one_line
    from llmrun.units import format_bytes

    budget = request.budget
    wanted = PullRequest(
        _ref(request), request.sources, named=budget.named, reserve_bytes=budget.reserve_bytes
    )
    try:
        begun = shown(begin_pull(wanted), streams, quiet=quiet)
    except NetworkFailure as failure:
        raise NetworkFailure(f"{missing.message}, and {failure.message}", failure.hint) from failure
    if isinstance(begun, Pulled):
        return
    variant = _variant(begun, streams, quiet=quiet)
    if ask:
        streams.err.write(f"{one_line(missing.message)}\n")
        size = format_bytes(variant.size_bytes)
        question = f"Fetch {variant.quant or variant.name} of {begun.repository.listing.repo}, {size}?"
        if not ask_yes(streams, question, default=True):
            raise missing
    fetch_shown(begun, variant, streams, quiet=quiet)


def _variant(begun: Pull, streams: Streams, *, quiet: bool) -> Variant[RepoFile]:
    """What was named, else what suits this machine best."""
    from llmrun.app.library.pull import marked
    from llmrun.commands.waiting import shown

    if begun.tag:
        return begun.named(begun.tag)
    offers, variants = shown(begun.offers(), streams, quiet=quiet)
    return variants[marked(offers)]
