"""Runs a benchmark or a comparison and shows it in the format that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import typer

from llmrun.app.bench.keep import BenchRequest, Instruments, provenance
from llmrun.app.bench.run import bench
from llmrun.app.settings import SettingSources
from llmrun.app.worker import SigintStops, Stop, in_worker
from llmrun.bench import export
from llmrun.bench.charts import charts
from llmrun.bench.compare import Side, compare
from llmrun.bench.plan import BenchPlan
from llmrun.commands.bench_options import FORMATS
from llmrun.commands.process import log_to_stderr
from llmrun.documents.requests import dump
from llmrun.errors import Interrupted, LlmrunError, UsageError
from llmrun.journal.bench import LAST, bench_runs, find_runs
from llmrun.metrics.clock import process_clock
from llmrun.reports.bench import BenchReport
from llmrun.ui.bench_compare import print_comparison
from llmrun.ui.bench_view import BenchView, Writers
from llmrun.ui.errors import print_error
from llmrun.ui.streams import Streams

DOCUMENT = "json document"


def run_bench(
    plan: BenchPlan,
    flags: Mapping[str, object],
    profile: str | None,
    *,
    prompt: str | None,
    output: str | None,
    save: str,
    plot: Path | None,
    verbose: bool,
    quiet: bool,
) -> BenchReport:
    """Measure, show, and draw where that was asked for. Errors are those of `bench`."""
    from llmrun.app.bench.bandwidth import read_bandwidth

    if output not in (None, DOCUMENT, *FORMATS):
        raise UsageError(f"-o cannot be {output!r}", f"allowed: {', '.join(FORMATS)}")
    if plot is not None:
        from llmrun.ui.plot import check_plot

        check_plot(plot, varied=plan.has_pictures)
    if verbose:
        log_to_stderr()
    request = BenchRequest(
        plan,
        SettingSources(flags, profile, os.environ),
        None if prompt is None else _prompt_text(prompt),
        save,
        tuple(sys.argv[1:]),
    )
    streams, stop = Streams.of_process(), Stop()
    view = _view(streams, request, output, verbose=verbose, quiet=quiet)
    tools = Instruments(process_clock(), bandwidth=read_bandwidth)
    with SigintStops(stop), closing(in_worker(bench(request, tools, stop), stop, view.wants)) as events:
        try:
            for event in events:
                view.take(event)
        except LlmrunError:  # nothing was measured, yet what is on stdout is an array
            if output == "json":
                streams.write_text("[]\n")
            raise
        finally:
            view.close()
    assert view.report is not None
    pictures = () if plot is None else charts(view.report.records)  # none where it was interrupted early
    if plot is not None and pictures:
        from llmrun.ui.plot import save_plot

        save_plot(pictures, plot)
    return view.report


def _prompt_text(prompt: str) -> str:
    from llmrun.app.prompt_input import text_or_file

    text = text_or_file(prompt)
    if not text.strip():
        raise UsageError("--prompt holds no text", "give it a text, or @FILE")
    return text


def run_name(save: str | None) -> str:
    """The name of a run as the history keeps it; empty for a run without one.

    Raises:
        UsageError: it could not be asked for later.
    """
    if save is None:
        return ""
    if not save.strip() or not save.isprintable():
        raise UsageError("--save needs a name that can be typed", "such as --save before")
    if save == LAST:
        raise UsageError(
            f"--save cannot be {LAST!r}: --compare means the newest run by it", "take another name"
        )
    return save


def _view(
    streams: Streams, request: BenchRequest, output: str | None, *, verbose: bool, quiet: bool
) -> BenchView:
    person = output is None and streams.out_is_terminal
    return BenchView(
        streams,
        _writers(request, output or "md"),
        table=export.table if person else None,
        charts=charts,
        quiet=quiet,
        verbose=verbose,
    )


def _writers(request: BenchRequest, output: str) -> Writers:
    match output:
        case "csv":
            return Writers(export.csv_header(), export.csv_line)
        case "jsonl":
            return Writers(record=export.json_line)
        case "json":
            return Writers(end=export.json_array)
        case "md":
            return Writers(end=export.markdown)
    return Writers(end=lambda report: dump(export.bench_document(report, provenance(request))))


def end_early(error: LlmrunError, *, document: bool, quietly: bool) -> NoReturn:
    """End a run of which something was shown. A `document` on stdout holds the error itself."""
    if not document and not (quietly and isinstance(error, Interrupted)):
        raise error
    if not isinstance(error, Interrupted):
        print_error(Streams.of_process(), error)
    raise typer.Exit(error.exit_code)


def compare_runs(first: str, second: str = LAST, *, json: bool) -> None:
    """Lay runs of the history beside each other, all of a name as one side.

    Raises:
        UsageError: there is no such run.
    """
    from llmrun.config.dirs import user_data_dir

    runs = bench_runs(user_data_dir(os.environ))
    sides = [find_runs(runs, name) for name in (first, second)]
    found = compare(*(Side(side[-1].title, [run.records for run in side]) for side in sides))
    streams = Streams.of_process()
    if json:
        streams.write_text(dump(export.compare_document(found)))
    else:
        print_comparison(streams, found)
