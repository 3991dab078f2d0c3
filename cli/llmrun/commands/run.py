"""`llmrun run`: one answer to stdout."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Optional

import typer

from llmrun.commands.memory_options import DEFAULT_RESERVE, Force, PlanReserve, PresentDevice, budget_of
from llmrun.commands.options import takes_settings
from llmrun.commands.pull_missing import PullFlag
from llmrun.commands.shared_options import Profile, Quiet, TemplateFile, Verbose
from llmrun.errors import Interrupted, UsageError

STREAM_FORMATS = ("json",)
MAX_LOGPROBS = 100
Files = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("-f", "--file", metavar="FILE", help="give a text file to the model, with its name"),
]
Logprobs = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        "--logprobs",
        metavar="N",
        min=0,
        max=MAX_LOGPROBS,
        help="with --json: each token's log probability and the N likeliest",
    ),
]
Lines = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--stream", metavar="json", help="one JSON object a line, as things happen"),
]


@takes_settings(without=("overflow", "overflow_headroom"))  # one message leaves nothing to leave out
def run(
    *,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="path to a .gguf file, user/repo:QUANT, or a catalogue name"),
    ],
    words: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="PROMPT", help="the prompt; @FILE reads one, @@ is a plain @"),
    ] = None,
    prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-p", "--prompt", metavar="TEXT|@FILE", help="the prompt, as an option"),
    ] = None,
    file: Files = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="leave standard input alone")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="continue the text as it is, no chat template")] = False,
    chat_template_file: TemplateFile = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on past the end of the turn")] = False,
    logprobs: Logprobs = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON document with text and figures")] = False,
    stream: Lines = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="show the answer at once; changes the display only")
    ] = False,
    explain_cache: Annotated[
        bool, typer.Option("--explain-cache", help="say on stderr what of the prompt was cached, or why not")
    ] = False,
    device: PresentDevice = None,
    reserve: PlanReserve = DEFAULT_RESERVE,
    force: Force = False,
    pull: PullFlag = False,
    profile: Profile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    flags: dict[str, object],
) -> None:
    """Answer one prompt; the answer alone goes to stdout.

    The prompt is put together from files (-f), PROMPT or -p, and standard input, which is read when it is
    not a terminal. In a loop that reads standard input itself, use --no-stdin.
    """
    from llmrun.app.loading import OpenRequest
    from llmrun.app.run import RunRequest
    from llmrun.app.run import run as run_request
    from llmrun.app.settings import SettingSources
    from llmrun.app.worker import SigintStops, Stop
    from llmrun.commands.prompt import gather_prompt, system_text
    from llmrun.commands.pull_missing import ensure_here
    from llmrun.commands.views import make_view, show_events
    from llmrun.metrics.clock import process_clock

    clock = process_clock()
    if raw and (chat_template_file or flags["system"]):
        raise UsageError("--raw uses no chat template and no system text", "leave one of them out")
    if logprobs is not None and not (json or stream):
        raise UsageError("--logprobs needs --json or --stream json", "add one of them")
    sources = SettingSources(system_text(flags), profile, os.environ)
    view = make_view(sources, json=json, lines=_lines(stream), no_stream=no_stream, quiet=quiet,
                     verbose=verbose)  # fmt: skip
    text = gather_prompt(words or [], prompt, file or [], None if no_stdin else sys.stdin)
    opening = OpenRequest(
        model, sources, chat_template_file, not raw, budget_of(device, reserve, force=force)
    )
    if ensure_here(opening, pull=pull, quiet=quiet):
        clock = process_clock()
    request = RunRequest(opening, text, raw, ignore_eos, logprobs, metered=view.shows_context)
    stop = Stop()
    with SigintStops(stop):
        show_events(run_request(request, clock, stop), stop, view)
    if explain_cache and view.completion is not None:
        from llmrun.ui.cache_view import print_explanation
        from llmrun.ui.streams import Streams

        print_explanation(Streams.of_process(), view.completion)
    if view.completion is not None and view.completion.finish_reason == "interrupted":
        if json or stream:  # the document says so; there is one document only
            raise typer.Exit(Interrupted.exit_code)
        raise Interrupted("interrupted")


def _lines(stream: str | None) -> bool:
    if stream is not None and stream not in STREAM_FORMATS:
        raise UsageError(f"--stream cannot be {stream!r}", f"allowed: {', '.join(STREAM_FORMATS)}")
    return stream is not None
