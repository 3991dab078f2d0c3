"""The time of a request on stdout: the two phases, what bounds them, and what each lever would change."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.events import Event, LoadProgress, Notice
from llmrun.reports.estimate import Ceiling, EstimateReport, Lever, TextSample
from llmrun.ui.bar import bar
from llmrun.ui.model_name import model_line
from llmrun.ui.notes import print_note
from llmrun.ui.page import Page
from llmrun.ui.progress import PhaseProgress
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_tokens,
)

WIDEST_BAR, LEAST_BAR = 40, 8
NARROW_COLUMNS, NAME_SHOWN = 64, 24
_SUM_IN_SECONDS = (1.0, 120.0)
_SHOWN_S = 0.05  # what one decimal shows


class EstimateProgress:
    """Shows what happens while a model is measured, on stderr."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._progress = PhaseProgress(streams, enabled=True)

    def wants(self, event: Event) -> bool:
        """True for events that are shown."""
        return isinstance(event, LoadProgress | Notice)

    def take(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, LoadProgress):
            self._progress.loading(event.fraction)
        elif isinstance(event, Notice):
            self._progress.clear()
            if event.level == "warning":
                self._streams.err.write(f"warning: {one_line(event.text)}\n")
                self._streams.err.flush()
            elif self._streams.err_is_terminal:
                print_note(self._streams, event.text)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._progress.clear()


def print_estimate(streams: Streams, report: EstimateReport) -> None:
    """The whole report."""
    page = Page(streams)
    _head(page, report)
    _phases(page, report)
    if report.ceiling is not None:
        _ceiling(page, report, report.ceiling)
    if report.levers:
        _levers(page, report)
    if report.texts:
        _texts(page, report.texts)
    page.flush()


def _head(page: Page, report: EstimateReport) -> None:
    if report.model is not None:
        page.line(model_line(report.model), style="bold")
    cached = f" ({format_count(report.cached_tokens)} cached)" if report.cached_tokens else ""
    output = format_tokens(report.output_tokens)
    page.line(f"prompt of {format_tokens(report.prompt_tokens)}{cached}, output of {output}")
    if report.note:
        page.line(f"rates {report.note}")
    page.line()


def _phases(page: Page, report: EstimateReport) -> None:
    from rich.table import Table

    times = report.times
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    rows = (
        ("prefill", times.prefill_s, times.prefill_share, report.prefill.rate),
        ("decode", times.decode_s, times.decode_share, report.decode.rate),
    )
    texts = [
        (name, _seconds(taken_s, times.total_s), f"{share:.0%}", format_rate(rate))
        for name, taken_s, share, rate in rows
    ]
    used = sum(max(map(len, column)) + 2 for column in zip(*texts, strict=True))
    cells = min(WIDEST_BAR, page.width - used - 2)
    for cells_of_row, (_, _, share, _) in zip(texts, rows, strict=True):
        table.add_row(*cells_of_row, bar(share, cells) if cells >= LEAST_BAR else "")
    table.add_row("total", _seconds(times.total_s, times.total_s), style="bold")
    page.table(table)
    if report.prompt_tokens and report.output_tokens:
        first = _seconds(times.ttft_s, times.total_s)
        page.line(f"First token after {first}; loading, template and tokenising come on top.")
    _beyond(page, report)


def _beyond(page: Page, report: EstimateReport) -> None:
    """Say where phases go deeper than they were measured, and what their rates are taken to do there."""
    phases = (("prefill", report.prefill), ("decode", report.decode))
    along = [name for name, used in phases if used.beyond and len(used.points) > 1]
    level = [name for name, used in phases if used.beyond and len(used.points) == 1]
    for names, said in (
        (along, "extrapolated"),
        (level, "taken to stay the same, though they fall: `llmrun bench -d` tells how far"),
    ):
        if names:
            verb = "were" if len(names) > 1 else "was"
            page.line(f"This goes deeper than {' and '.join(names)} {verb} measured; rates there are {said}.")


def _seconds(time_s: float, total_s: float) -> str:
    """Parts of a sum in one unit, so that they can be added by eye."""
    low, high = _SUM_IN_SECONDS
    return f"{time_s:.1f} s" if low <= total_s < high and time_s >= _SHOWN_S else format_seconds(time_s)


def _ceiling(page: Page, report: EstimateReport, ceiling: Ceiling) -> None:
    step, rate = format_bytes(ceiling.bytes_per_token), format_rate(ceiling.rate)
    memory = format_bandwidth(ceiling.bandwidth_bytes_per_s)
    if ceiling.busy:
        memory += " (too low: measured beside other programs)"
    text = f"Bandwidth: a token reads {step}; at {memory} that is {rate} at most"
    used = report.decode.rate
    if used is not None and report.decode.source != "bandwidth":
        share = used / ceiling.rate
        text += f", of which decode reaches {share:{'.0%' if share >= 0.1 else '.2%'}}"
    elif used is not None:
        text += "; decode is taken to reach it"
    page.line(f"{text}.")


def _levers(page: Page, report: EstimateReport) -> None:
    from rich.table import Table

    page.line()
    page.line("One thing changed at a time", style="bold")
    total_s = report.times.total_s
    if page.width < NARROW_COLUMNS:
        for lever in report.levers:
            page.line(_lever_text(lever, report))
            page.line(f"  total {_seconds(lever.times.total_s, total_s)}, {_gain(lever)}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=None)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", "first token", "total", "as fast", style="dim")
    for lever in report.levers:
        table.add_row(
            _lever_text(lever, report),
            _seconds(lever.times.ttft_s, total_s),
            _seconds(lever.times.total_s, total_s),
            _gain(lever),
        )
    page.console.print(table)


def _gain(lever: Lever) -> str:
    return f"{'up to ' if lever.bound else ''}{lever.gain:,.2f}×"


def _lever_text(lever: Lever, report: EstimateReport) -> str:
    match lever.kind:
        case "prefix_cache":
            return f"prefix cached: {format_count(int(lever.value))} of {format_tokens(report.prompt_tokens)}"
        case "half_retrieved":
            return f"half the retrieved text: {format_tokens(int(lever.value))} less"
        case "quantization":
            return f"weights as {one_line(lever.value)}" if lever.value else "weights of half the bytes"
    one = _seconds(lever.before_s, report.times.total_s)
    return f"{lever.value} requests at once (one by one: {one})"


def _texts(page: Page, texts: Sequence[TextSample]) -> None:
    page.line()
    page.line("Text by this model's tokenizer", style="bold")
    if page.width < NARROW_COLUMNS:
        for text in texts:
            name, tokens, characters, size, rate = _text_cells(text)
            page.line(f"{name}: {tokens} tokens, a token {characters} characters, {size} bytes; {rate}")
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", "tokens", "characters/token", "bytes/token", "", style="dim")
    for text in texts:
        table.add_row(*_text_cells(text))
    page.console.print(table)


def _text_cells(text: TextSample) -> tuple[str, str, str, str, str]:
    name = one_line(text.name)
    name = name if len(name) <= NAME_SHOWN else name[: NAME_SHOWN - 1] + "…"
    rate = text.characters_per_s
    return (
        f"{name} ({text.script})" if text.script else name,
        format_count(text.tokens),
        f"{text.characters_per_token:.2f}",
        f"{text.bytes_per_token:.2f}",
        "" if rate is None else f"{rate:,.0f} characters/s",
    )
