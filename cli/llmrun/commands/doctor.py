"""`llmrun doctor`: what this machine has, and what keeps models from running on it."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def doctor(
    *,
    network: Annotated[
        bool, typer.Option("--network", help="ask the Hugging Face Hub whether it answers")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Look at the engine, the machine and the settings, and say what to do about what is wrong.

    The exit status is 0 when a model can run here, else that of the error a command would end with.
    """
    from llmrun.app.doctor.run import DoctorRequest, examine
    from llmrun.documents.requests import dump
    from llmrun.documents.tools import doctor_document
    from llmrun.ui.doctor_view import print_doctor
    from llmrun.ui.streams import Streams

    report = examine(DoctorRequest(os.environ, network))
    streams = Streams.of_process()
    if json:
        streams.write_text(dump(doctor_document(report)))
    else:
        print_doctor(streams, report)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
