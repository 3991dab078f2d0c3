"""`llmrun show`: what a model file says about itself."""

from __future__ import annotations

from typing import Annotated

import typer

from llmrun.errors import TemplateUnusable, UsageError


def show(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="path to a .gguf file, user/repo:QUANT, or a catalogue name"),
    ],
    *,
    metadata: Annotated[bool, typer.Option("--metadata", help="all keys of the header")] = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="name, dimensions, type and bytes of each")
    ] = False,
    template: Annotated[bool, typer.Option("--template", help="the chat template's text, as it is")] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Show what a model file holds, from its header alone: nothing is loaded.

    Works on files that cannot run too: cut short, of an unknown architecture, or no language model.
    """
    from llmrun.app.library.show import show_model
    from llmrun.commands.waiting import shown
    from llmrun.documents.models import show_document
    from llmrun.documents.requests import dump
    from llmrun.ui import show_view
    from llmrun.ui.streams import Streams

    if template and (metadata or tensors) and not json:
        raise UsageError("--template writes the template and nothing else", "ask for the rest apart")
    streams = Streams.of_process()
    checked = json or not (metadata or tensors or template)
    report = shown(show_model(model, check_template=checked), streams)
    show_view.print_warnings(streams, report)
    if json:
        document = show_document(report, metadata=metadata, tensors=tensors, template=template)
        streams.write_text(dump(document))
        return
    if template:
        if report.template.text is None:
            raise TemplateUnusable("the file has no chat template", "see all it has with --metadata")
        show_view.print_template(streams, report.template.text)
    if metadata:
        show_view.print_metadata(streams, report)
    if tensors:
        show_view.print_tensors(streams, report)
    if not (metadata or tensors or template):
        show_view.print_overview(streams, report)
