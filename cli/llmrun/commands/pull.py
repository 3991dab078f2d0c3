"""`llmrun pull`: fetch a model from the Hub."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from llmrun.commands.memory_options import DEFAULT_RESERVE, Device, Reserve, memory_of
from llmrun.commands.options import takes_settings
from llmrun.commands.waiting import shown
from llmrun.config.schema import SETTINGS
from llmrun.errors import Interrupted, ModelNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator

    from llmrun.app.library.pull import Pull
    from llmrun.reports.download import DownloadEvent
    from llmrun.reports.pull import Pulled
    from llmrun.store.repo_files import RepoFile
    from llmrun.store.variants import Variant
    from llmrun.ui.streams import Streams

_OF_CONTEXT = {"n_ctx", "type_k", "type_v"}
_WITHOUT = [setting.name for setting in SETTINGS if setting.name not in _OF_CONTEXT]


@takes_settings(without=_WITHOUT)
def pull(
    *,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="MODEL", help="user/repo[:QUANT], or a catalogue name; --list without it names those"
        ),
    ] = None,
    quant: Annotated[str, typer.Option("--quant", metavar="NAME", help="the quantization to fetch")] = "",
    list_only: Annotated[
        bool, typer.Option("--list", help="show what there is and what fits; fetch nothing")
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="ask nothing: take the one that suits this machine best")
    ] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="hash what is here, and fetch anew what is damaged, nothing else")
    ] = False,
    revision: Annotated[
        str, typer.Option("--revision", metavar="NAME", help="branch, tag or commit", show_default=True)
    ] = "main",
    device: Device = None,
    reserve: Reserve = DEFAULT_RESERVE,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no progress and no notes")] = False,
    flags: dict[str, object],
) -> None:
    """Fetch a model from the Hub into the Hugging Face cache, which other programs share.

    Without a quantization a table shows what each weighs and whether it fits; off a terminal the marked
    one is taken. A broken download goes on where it was when the command is run again; a file counts only
    once its digest is the one the Hub tells. What is here already is taken by its size; --verify hashes it.
    """
    from llmrun.app.library.pull import PullRequest, begin_pull
    from llmrun.app.library.verify import verify
    from llmrun.app.settings import SettingSources
    from llmrun.documents.library import pull_document
    from llmrun.documents.requests import dump
    from llmrun.reports.pull import Pulled
    from llmrun.ui.pull_view import print_pulled
    from llmrun.ui.streams import Streams

    streams, memory = Streams.of_process(), memory_of(device, reserve)
    if check and (list_only or revision != "main"):
        raise UsageError("--verify is for what is here", "leave out --list and --revision")
    if model is None:
        _list_catalogue(streams, listed=list_only and not quant, json=json)
        return
    request = PullRequest(model, SettingSources(flags, None, os.environ), quant, revision, *memory)
    begun: Pull | Pulled
    if check:
        begun = _fetching(verify(request), streams, quiet=quiet)
    else:
        begun = shown(begin_pull(request), streams, quiet=quiet)
    if list_only:
        _list_offers(begun, streams, json=json, quiet=quiet)
        return
    if not isinstance(begun, Pulled):
        variant = _choose(begun, streams, ask=not yes, quiet=quiet)
        begun = fetch_shown(begun, variant, streams, quiet=quiet)
    if json:
        streams.write_text(dump(pull_document(begun)))
    elif not quiet:
        print_pulled(streams, begun)


def _list_catalogue(streams: Streams, *, listed: bool, json: bool) -> None:
    from llmrun.app.library.suggest import known_models
    from llmrun.documents.library import catalogue_document
    from llmrun.documents.requests import dump
    from llmrun.ui.library_view import print_known

    if not listed:
        raise UsageError("no model is named", "llmrun pull --list names those that llmrun knows")
    if json:
        streams.write_text(dump(catalogue_document(known_models())))
    else:
        print_known(streams, known_models())


def _list_offers(begun: Pull | Pulled, streams: Streams, *, json: bool, quiet: bool) -> None:
    from llmrun.app.library.pull import Pull
    from llmrun.documents.library import offers_document
    from llmrun.documents.requests import dump
    from llmrun.ui.pull_view import print_offers

    if not isinstance(begun, Pull):
        raise UsageError(f"{begun.name} comes in a Python package", "llmrun show tells what it is")
    offers, _ = shown(begun.offers(), streams, quiet=quiet)
    if json:
        streams.write_text(dump(offers_document(offers)))
    else:
        print_offers(streams, offers)


def fetch_shown(begun: Pull, variant: Variant[RepoFile], streams: Streams, *, quiet: bool) -> Pulled:
    """Fetch a model and show it. Raises what the download raises, `Interrupted` at Ctrl-C."""
    return _fetching(begun.fetch(variant), streams, quiet=quiet)


def _fetching(events: Generator[DownloadEvent, None, Pulled], streams: Streams, *, quiet: bool) -> Pulled:
    try:
        return shown(events, streams, quiet=quiet)
    except Interrupted:
        raise Interrupted(
            "interrupted; what has come is kept", "the same command goes on where it stopped"
        ) from None


def _choose(begun: Pull, streams: Streams, *, ask: bool, quiet: bool) -> Variant[RepoFile]:
    """What was named, what the user takes from the table, or what is marked.

    Raises:
        DoesNotFit: nobody can be asked, and none fits.
        Interrupted: the user leaves.
    """
    from llmrun.app.library.pull import marked
    from llmrun.ui.ask import can_ask
    from llmrun.ui.pull_view import ask_which

    if begun.tag:
        return begun.named(begun.tag)
    offers, variants = shown(begun.offers(), streams, quiet=quiet)
    if not ask or not can_ask(streams):
        return variants[marked(offers)]

    def find(name: str) -> int | str:
        try:
            return variants.index(begun.named(name))
        except (ModelNotFound, UsageError) as error:
            return f"{error.message}: {error.hint}"

    index = ask_which(streams, offers, find)
    if index is None:
        raise Interrupted("nothing was fetched")
    return variants[index]
