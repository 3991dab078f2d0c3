"""A model's description on stdout: one row a fact, and lists of metadata and tensors on request.

Nothing is coloured, so a pipe gets what a terminal gets; only long lines are broken to a terminal's width.
Every text of the file is cut first and made visible then, so that size and content stay harmless.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from llmrun.reports.model import ArraySummary, MetadataValue, ModelReport, TemplateReport
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line, visible
from llmrun.ui.vram_view import remote_text
from llmrun.units import format_bytes, format_count, format_counted, format_tokens

DASH = "–"
TEXT_SHOWN, ITEM_SHOWN, ITEMS_SHOWN = 160, 40, 4
KEY_COLUMNS, LEAST_VALUE_COLUMNS = 44, 20
LAYERS_LISTED = 6
Row = tuple[str, str]


def print_warnings(streams: Streams, report: ModelReport) -> None:
    """What is wrong with the file, on stderr."""
    for warning in report.warnings:
        streams.err.write(f"warning: {one_line(warning)}\n")
    streams.err.flush()


def print_overview(streams: Streams, report: ModelReport) -> None:
    """The facts of the model, about a screen of them."""
    rows = [*_identity(report), *_shape(report), *_text_rows(report), *_tensor_rows(report)]
    _print_rows(streams, [(name, value) for name, value in rows if value])


def print_metadata(streams: Streams, report: ModelReport) -> None:
    """All keys with their values; arrays by type, length and first items."""
    _print_rows(
        streams, [(_cut(key, TEXT_SHOWN), value_text(value)) for key, value in report.metadata.items()]
    )


def print_tensors(streams: Streams, report: ModelReport) -> None:
    """All tensors: name, dimensions, type, bytes."""
    cells = [
        (one_line(t.name), " × ".join(map(format_count, t.dims)), t.type, format_count(t.size_bytes))
        for t in report.tensors
    ]
    table = [("tensor", "dimensions", "type", "bytes"), *cells]
    names, dims, types, sizes = (max(len(row[i]) for row in table) for i in range(4))
    width = _columns(streams)
    if width is not None and names + dims + types + sizes + 6 > width:
        lines = [f"{name}\n  {dim}  {kind}  {size}" for name, dim, kind, size in cells]
    else:
        lines = [f"{n:<{names}}  {d:>{dims}}  {k:<{types}}  {s:>{sizes}}" for n, d, k, s in table]
    streams.write_text("".join(f"{line.rstrip()}\n" for line in lines))


def print_template(streams: Streams, text: str) -> None:
    """The template: byte for byte to a file or pipe, with control characters shown on a terminal."""
    streams.write_text(visible(text) if streams.out_is_terminal else text)


def value_text(value: MetadataValue) -> str:
    """A metadata value in one harmless line of bounded length."""
    if isinstance(value, ArraySummary):
        items = [_cut(_scalar(item), ITEM_SHOWN) for item in value.first[:ITEMS_SHOWN]]
        more = ", …" if value.length > len(items) else ""
        return f"[{value.type} × {format_count(value.length)}] {', '.join(items)}{more}".rstrip()
    if isinstance(value, str) and len(value) > TEXT_SHOWN:
        return f"{_cut(value, TEXT_SHOWN)} ({format_count(len(value))} characters)"
    return _cut(_scalar(value), TEXT_SHOWN)


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _cut(text: str, limit: int) -> str:
    return one_line(text if len(text) <= limit else text[: limit - 1] + "…")


def _identity(report: ModelReport) -> Iterable[Row]:
    model = report.model
    yield "name", _cut(model.name, TEXT_SHOWN) or DASH
    yield "file", one_line(model.path)
    if report.remote is not None:
        yield "", one_line(remote_text(report.remote))
    if report.part is not None:
        yield "part", f"{report.part[0]:,} of {report.part[1]:,}; figures are of this file alone"
    elif len(report.parts) > 1:
        yield "files", format_count(len(report.parts))
    yield "kind", "" if report.kind == "model" else _cut(report.kind, ITEM_SHOWN)
    yield "architecture", _cut(model.arch, TEXT_SHOWN) or DASH
    yield "parameters", _parameters(report.n_params)
    bits = report.bits_per_weight
    yield "size", format_bytes(model.size_bytes) + (f", {bits:.2f} bits a weight" if bits else "")
    claim = "" if report.quant_agrees else f" (the file says {report.declared_quant}, its tensors do not)"
    yield "quantization", (model.quant or DASH) + claim


def _parameters(count: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name} ({format_count(count)})"
    return format_count(count) if count else DASH


def _shape(report: ModelReport) -> Iterable[Row]:
    attention, experts = report.attention, report.experts
    yield "layers", _known(report.n_layer)
    yield "embedding", _known(report.n_embd)
    yield "heads", _by_layer(attention.n_head)
    yield "KV heads", _by_layer(attention.n_head_kv)
    k, v = attention.head_size_k, attention.head_size_v
    yield "head size", _known(k) if k == v else f"K {format_count(k)}, V {format_count(v)}"
    yield "context", format_tokens(report.n_ctx_train) if report.n_ctx_train else DASH
    yield "window", _window(report)
    if experts is not None:
        shared = f", {experts.shared:,} shared" if experts.shared else ""
        yield "experts", f"{experts.count:,}, of which a token uses {_by_layer(experts.used)}{shared}"
    kv, note = attention.kv_bytes_per_token, attention.kv_note
    more = f"; {note}" if note else ""
    yield "KV cache", f"{DASH} ({note})" if kv is None else f"{format_bytes(kv)} a token at f16{more}"


def _known(count: int) -> str:
    return format_count(count) if count else DASH


def _by_layer(values: Sequence[int]) -> str:
    """One number where all layers agree, else each number with its count of layers."""
    counts = Counter(values).most_common()
    if len(counts) <= 1:
        return _known(counts[0][0]) if counts else DASH
    shown = [f"{value:,} in {format_counted(n, 'layer')}" for value, n in counts[:ITEMS_SHOWN]]
    return ", ".join(shown) + (", …" if len(counts) > ITEMS_SHOWN else "")


def _window(report: ModelReport) -> str:
    window = report.attention.window
    if window is None:
        return ""
    full = [str(il) for il, windowed in enumerate(window.layers) if not windowed]
    what = f"{format_tokens(window.n_swa)}{' (chunks)' if window.chunked else ''}"
    text = f"{what} in {len(window.layers) - len(full):,} of {format_counted(len(window.layers), 'layer')}"
    if not full:
        return text
    return f"{text}; full: {', '.join(full[:LAYERS_LISTED])}{', …' if len(full) > LAYERS_LISTED else ''}"


def _text_rows(report: ModelReport) -> Iterable[Row]:
    vocabulary = report.vocabulary
    kind = f" ({_cut(vocabulary.model, ITEM_SHOWN)})" if vocabulary.model else ""
    yield "vocabulary", f"{format_tokens(vocabulary.n_vocab)}{kind}" if vocabulary.n_vocab else DASH
    yield "chat template", template_text(report.template)
    yield "licence", _cut(report.licence, TEXT_SHOWN) or DASH
    settings = [("file", report.sampling), ("catalogue", report.catalogue_sampling)]
    for source, sampling in settings:
        named = [f"{_cut(k, ITEM_SHOWN)} {_cut(_scalar(v), ITEM_SHOWN)}" for k, v in sampling.items()]
        more = ", …" if len(named) > 2 * LAYERS_LISTED else ""
        yield "sampling", f"{', '.join(named[: 2 * LAYERS_LISTED])}{more} ({source})" if named else ""
    for name, array in (("languages", report.languages), ("tags", report.tags)):
        if array is not None:
            items = [_cut(_scalar(item), ITEM_SHOWN) for item in array.first]
            yield name, ", ".join(items) + (", …" if array.length > len(items) else "")


def template_text(template: TemplateReport) -> str:
    """`yes`, `none`, or what is wrong; and the names of further templates."""
    state = {"valid": "yes", "unchecked": "yes, not tried"}.get(template.status, template.status)
    reason = f": {_cut(template.reason, 2 * TEXT_SHOWN)}" if template.reason else ""
    if not template.named:
        return state + reason
    names = [_cut(name, ITEM_SHOWN) for name in template.named[:ITEMS_SHOWN]]
    more = ", …" if len(template.named) > ITEMS_SHOWN else ""
    return f"{state}{reason}; also {', '.join(names)}{more}"


def _tensor_rows(report: ModelReport) -> Iterable[Row]:
    yield (
        "tensors",
        f"{len(report.tensors):,}, {format_bytes(report.tensor_bytes)}" if report.tensors else DASH,
    )
    for use in report.tensor_types:
        yield f"  {use.type}", f"{use.count:,}, {format_bytes(use.size_bytes)}"


def _columns(streams: Streams) -> int | None:
    """Width of the terminal that stdout is; None where lines may be of any length."""
    if not streams.out_is_terminal:
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def _print_rows(streams: Streams, rows: Sequence[Row]) -> None:
    """Names and values in two columns; where values would get too narrow, each under its name."""
    from textwrap import wrap

    names = min(KEY_COLUMNS, max((len(name) for name, _ in rows), default=0))
    width = _columns(streams)
    room = math.inf if width is None else width - names - 2
    lines: list[str] = []
    for name, value in rows:
        if width is None:
            lines.append(f"{name:<{names}}  {value}")
        elif room < LEAST_VALUE_COLUMNS or len(name) > names:
            lines += [name, *(f"  {line}" for line in wrap(value, max(10, width - 2)))]
        else:
            first, *more = wrap(value, int(room)) or [""]
            lines += [f"{name:<{names}}  {first}", *(f"{'':<{names}}  {line}" for line in more)]
    streams.write_text("".join(f"{line.rstrip()}\n" for line in lines))
