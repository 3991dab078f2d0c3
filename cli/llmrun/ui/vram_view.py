"""The memory of a model on stdout: a column a device, a bar of what eats the memory, a grid of contexts.

Colour is an extra: marks and words say the same, so that a pipe gets what a terminal gets. Tables that are
wider than the terminal go on below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from llmrun.events import RemoteModel
from llmrun.reports.vram import BUCKETS, Buckets, DeviceUse, GridCell, VramReport
from llmrun.ui.model_name import model_line
from llmrun.ui.page import Page
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_count, format_tokens

WIDEST_BAR = 60
NAME_COLUMNS, DEVICE_COLUMNS = 16, 12
WIDE_COMPARISON, NARROW_GRID = 72, 50
YES, PARTLY, NO, NONE = "✓", "◐", "✗", "–"
_TITLES = {
    "weights_bytes": "weights",
    "repack_bytes": "repacked copy",
    "kv_bytes": "KV cache",
    "recurrent_bytes": "recurrent state",
    "compute_bytes": "compute",
    "output_bytes": "output",
}
_MARKS = {
    "weights_bytes": ("█", "blue"),
    "repack_bytes": ("▓", "cyan"),
    "kv_bytes": ("▒", "magenta"),
    "recurrent_bytes": ("▒", "bright_magenta"),
    "compute_bytes": ("░", "yellow"),
    "output_bytes": ("░", "bright_yellow"),
}
_COLOURS = {YES: "green", PARTLY: "yellow", NO: "red"}
_WAYS = {"quantization": "a smaller quantization, {}", "kv_type": "--kv-type {}", "context": "-c {}"}


def print_vram_warnings(streams: Streams, report: VramReport) -> None:
    """What the figures leave out, on stderr."""
    for warning in report.warnings:
        streams.err.write(f"warning: {one_line(warning)}\n")
    streams.err.flush()


def print_vram(streams: Streams, report: VramReport) -> None:
    """The whole report."""
    page = Page(streams)
    _head(page, report)
    _devices(page, report)
    _bars(page, report)
    _verdict(page, report)
    _grid(page, report)
    if report.steps:
        _steps(page, report)
    if report.verified:
        _verified(page, report)
    page.flush()


def _head(page: Page, report: VramReport) -> None:
    settings = report.settings
    page.line(model_line(report.model), style="bold")
    attention = {"auto": "on (auto counts as on)"}.get(settings.flash_attn, settings.flash_attn)
    types = settings.type_k if settings.type_k == settings.type_v else f"{settings.type_k}/{settings.type_v}"
    said = [
        f"context {format_count(settings.n_ctx)}",
        *([f"{settings.n_seq} sequences"] if settings.n_seq > 1 else []),
        f"KV {types}",
        f"micro-batch {format_count(settings.n_ubatch)}",
        f"flash attention {attention}",
    ]
    by = "by the formula; nothing is loaded" if report.method == "formula" else "as the engine computes them"
    page.line(", ".join(said))
    page.line(f"Sizes {by}.")
    if report.remote is not None:
        page.line(one_line(remote_text(report.remote)))
    page.line()


def remote_text(remote: RemoteModel) -> str:
    """That a model is not on this machine, what was read instead, and how to get it."""
    moved = f"{format_bytes(remote.received_bytes)} received" if remote.received_bytes else "kept from before"
    return (
        f"Not on this machine: the header was read from the Hub ({moved}). "
        f"llmrun pull {remote.name} gets the model."
    )


def _columns_at_once(width: int) -> int:
    return max(1, (width - NAME_COLUMNS) // DEVICE_COLUMNS)


def _devices(page: Page, report: VramReport) -> None:
    totals = report.totals
    used = [name for name in BUCKETS if getattr(totals, name) or name in ("weights_bytes", "kv_bytes")]
    devices: list[DeviceUse | None] = [*report.devices]
    if len(devices) > 1:
        devices.append(None)
    at_once = _columns_at_once(page.width)
    for start in range(0, len(devices), at_once):
        _device_table(page, report, devices[start : start + at_once], used)


def _device_table(
    page: Page, report: VramReport, devices: Sequence[DeviceUse | None], used: Sequence[str]
) -> None:
    """None stands for the totals."""
    from rich.table import Table
    from rich.text import Text

    def use(device: DeviceUse | None) -> Buckets:
        return report.totals if device is None else device.use

    def row(title: str, text: Callable[[DeviceUse | None], str], style: str = "") -> None:
        cells = [Text(text(d), overflow="fold", style=_colour(text(d))) for d in devices]
        if any(cells):
            table.add_row(Text(title), *cells, style=style)

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    for _ in devices:
        table.add_column(justify="right")
    row("", lambda d: "all devices" if d is None else one_line(d.name), "bold")
    for name in used:
        row(_TITLES[name], lambda d, name=name: format_bytes(getattr(use(d), name)))  # type: ignore[misc]
    row("sum", lambda d: format_bytes(use(d).sum_bytes), "bold")
    row("reserve", lambda d: "" if d is None else format_bytes(report.reserve_bytes))
    row("free", lambda d: "" if d is None else format_bytes(d.free_bytes))
    row("fits", lambda d: "" if d is None else (f"{YES} yes" if d.fits else f"{NO} no"))
    page.table(table)


def _colour(text: str) -> str:
    return next((colour for mark, colour in _COLOURS.items() if mark in text), "")


def _bars(page: Page, report: VramReport) -> None:
    """A bar a device: what its part is made of. How much of the device that is stands above it."""
    from rich.text import Text

    cells = max(10, min(WIDEST_BAR, page.width - 2))
    for device in report.devices:
        needed = device.use.sum_bytes
        if not needed:
            continue
        of = f"{needed / device.free_bytes:.0%} of what is free" if device.free_bytes else "nothing is free"
        page.line(f"{one_line(device.name)}: {format_bytes(needed)}, {of}")
        line = Text(overflow="crop")
        for name, width in _widths(device.use, cells):
            mark, colour = _MARKS[name]
            line.append(mark * width, style=colour)
        page.console.print(line)
        page.line(_legend(device.use))
        page.line()


def _widths(use: Buckets, cells: int) -> Iterator[tuple[str, int]]:
    """Cells of each bucket; their ends are rounded, so that the widths add up."""
    end = before = 0
    for name in BUCKETS:
        end += getattr(use, name)
        reached = round(cells * end / use.sum_bytes)
        yield name, reached - before
        before = reached


def _legend(use: Buckets) -> str:
    parts = [
        f"{_MARKS[name][0]} {_TITLES[name]} {getattr(use, name) / use.sum_bytes:.0%}"
        for name in BUCKETS
        if getattr(use, name)
    ]
    return "  ".join(part.replace(" ", "\u00a0") for part in parts)


def _verdict(page: Page, report: VramReport) -> None:
    style = {"fits": "bold green", "partial": "bold yellow", "too_large": "bold red"}[report.verdict]
    page.line(_verdict_text(report), style=style)
    gpus = [device for device in report.devices if device.kind != "cpu"]
    page.line(f"longest context that fits with these layers: {_longest(report, report.max_ctx)}")
    if report.max_ctx_auto not in (None, report.max_ctx):
        page.line(f"with layers chosen for it: {_longest(report, report.max_ctx_auto)}")
    page.line(f"one more token of context: {format_bytes(report.kv_bytes_per_token)}")
    if gpus:
        most = f"{report.max_gpu_layers} of {report.n_layers}{_experts(report)}"
        page.line(f"most layers that fit on the GPU: {most}")
    for remedy in report.remedies:
        value = format_count(int(remedy.value)) if remedy.kind == "context" else remedy.value
        way = _WAYS[remedy.kind].format(value.replace(",", ""))
        page.line(f"it would fit with {way}: {format_bytes(remedy.sum_bytes)}")
    page.line()


def _longest(report: VramReport, n_ctx: int | None) -> str:
    if not n_ctx:
        return "none fits"
    whole = report.n_ctx_train and n_ctx >= report.n_ctx_train
    return f"{format_tokens(n_ctx)}{' (all it was trained for)' if whole else ''}"


def _verdict_text(report: VramReport) -> str:
    layers = report.settings.n_gpu_layers
    gpus = any(device.kind != "cpu" for device in report.devices)
    if report.verdict == "fits":
        if not gpus:
            return "It fits."
        where = f"all {report.n_layers}" if layers >= report.n_layers else f"{layers} of {report.n_layers}"
        return f"It fits: {where} layers on the GPU{_experts(report)}."
    if report.verdict == "partial":
        fixed = gpus and report.max_ctx_auto is None
        other = "fewer layers on the GPU or a shorter context" if fixed else "a shorter context"
        return f"It does not fit as asked; it does with {other}."
    short = (
        (device.name, device.use.sum_bytes + report.reserve_bytes - device.free_bytes)
        for device in report.devices
        if not device.fits
    )
    lacks = ", ".join(f"{name} lacks {format_bytes(size)}" for name, size in short if size > 0)
    return f"It does not fit: {lacks}." if lacks else "It does not fit."


def _experts(report: VramReport) -> str:
    return f", the experts of {report.n_cpu_moe} on the CPU" if report.n_cpu_moe else ""


def _grid(page: Page, report: VramReport) -> None:
    from rich.table import Table
    from rich.text import Text

    types = list(dict.fromkeys(cell.kv_type for cell in report.grid))
    if not types:
        return
    gpus = any(device.kind != "cpu" for device in report.devices)
    partly = f"{YES} fits on the GPU, {PARTLY} with a part on the CPU" if gpus else f"{YES} fits"
    page.line(f"Memory on all devices by context and KV type ({partly}, {NO} does not fit)")
    narrow = page.width < NARROW_GRID
    table = Table.grid(padding=(0, 1 if narrow else 3, 0, 0))
    for _ in range(len(types) + 1):
        table.add_column(justify="right")
    table.add_row("context", *types, style="bold")
    for n_ctx, cells in groupby(report.grid, key=lambda cell: cell.n_ctx):
        texts = [_cell_text(cell, gpus=gpus, gap="" if narrow else " ") for cell in cells]
        here = n_ctx == report.settings.n_ctx
        table.add_row(
            Text(_ctx_text(n_ctx, short=narrow)),
            *(Text(t, style=_colour(t)) for t in texts),
            style="bold" if here else "",
        )
    page.table(table)


def _ctx_text(n_ctx: int, *, short: bool) -> str:
    return f"{n_ctx // 1024}k" if short and n_ctx % 1024 == 0 else format_count(n_ctx)


def _cell_text(cell: GridCell, *, gpus: bool, gap: str) -> str:
    if cell.sum_bytes is None:
        return NONE
    mark = NO if not cell.fits else PARTLY if gpus and cell.offload != "all" else YES
    return f"{format_bytes(cell.sum_bytes)}{gap}{mark}"


def _steps(page: Page, report: VramReport) -> None:
    page.line("How the KV cache and the recurrent state come about", style="bold")
    for number, step in enumerate(report.steps, 1):
        page.line(f"{number}. {one_line(step.text)}")
        page.line(f"   = {format_count(step.total_bytes)} bytes ({format_bytes(step.total_bytes)})")
    page.line()


def _verified(page: Page, report: VramReport) -> None:
    """Predicted and allocated, in bytes; the difference is the load less the formula."""
    from rich.table import Table

    page.line("Predicted and allocated, in bytes (difference: loaded less formula)", style="bold")
    rows = list(_comparisons(report))
    if page.width < WIDE_COMPARISON:
        for device, title, formula, engine, loaded in rows:
            page.line(f"{device} {title}")
            page.line(f"  formula {formula:,}, engine {engine:,}, loaded {loaded:,}")
            page.line(f"  difference {loaded - formula:+,}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "right", "right", "right"):
        table.add_column(justify=justify)
    table.add_row("device", "", "formula", "engine", "loaded", "difference", style="bold")
    for device, title, formula, engine, loaded in rows:
        table.add_row(
            device, title, *(f"{size:,}" for size in (formula, engine, loaded)), f"{loaded - formula:+,}"
        )
    page.table(table)


def _comparisons(report: VramReport) -> Iterator[tuple[str, str, int, int, int]]:
    for one in report.verified:
        for name in BUCKETS:
            sizes = [getattr(use, name) for use in (one.formula, one.engine, one.measured)]
            if any(sizes):
                yield (one_line(one.name), _TITLES[name], *sizes)
        sums = (one.formula.sum_bytes, one.engine.sum_bytes, one.measured.sum_bytes)
        if any(sums):
            yield (one_line(one.name), "sum", *sums)
