"""`llmrun list` and `llmrun rm`: the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from llmrun.errors import Interrupted, UsageError


def list_models(
    *,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """List the models on this machine, whoever fetched them, without any network.

    Broken-off downloads are marked partial. The date of last use is the file system's time of last reading.
    """
    from llmrun.app.library.local import library
    from llmrun.documents.requests import dump
    from llmrun.ui.library_view import print_library, print_unreadable
    from llmrun.ui.streams import Streams

    streams, found = Streams.of_process(), library()
    print_unreadable(streams, found)
    if json:
        from llmrun.documents.library import list_document

        streams.write_text(dump(list_document(found)))
    else:
        print_library(streams, found)


def rm(
    *,
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="names as `llmrun list` shows them; user/repo is all of it"),
    ],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="do not ask")] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Remove models from the Hugging Face cache, and say how much that frees.

    What another entry needs stays, and so do files given by path. Broken-off downloads go too.
    """
    from llmrun.app.library.local import find_removal, remove_models
    from llmrun.ui.ask import ask_yes, can_ask
    from llmrun.ui.library_view import print_freed, removal_text
    from llmrun.ui.streams import Streams

    streams = Streams.of_process()
    removals = [find_removal(model) for model in dict.fromkeys(models)]
    if not yes:
        if not can_ask(streams):
            raise UsageError("rm asks before it removes anything, and nobody can answer", "add --yes")
        streams.err.write(removal_text(removals))
        if not ask_yes(streams, "Remove?", default=False):
            raise Interrupted("nothing was removed")
    if json:
        from llmrun.documents.library import removed_document
        from llmrun.documents.requests import dump

        streams.write_text(dump(removed_document(list(remove_models(removals)))))
        return
    for freed in remove_models(removals):
        print_freed(streams, freed)
