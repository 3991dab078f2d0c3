"""Models on this machine as lines on stdout: aligned on a terminal, parted by tabs in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from shutil import get_terminal_size

from llmrun.reports.library import Freed, KeptModel, KnownModel, Library, Removal
from llmrun.ui.download_view import done_of
from llmrun.ui.notes import aligned
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_tokens

_PURPOSE_COLUMNS = 40
_HEAD = ("name", "quant", "size", "last used", "kind", "where")


def print_library(streams: Streams, library: Library) -> None:
    """A model a line; nothing but a word on stderr where there is none."""
    if not library.models:
        streams.err.write("there is no model here yet: llmrun pull MODEL fetches one\n")
        streams.err.flush()
        return
    rows = [_row(model) for model in library.models]
    if not streams.out_is_terminal:
        streams.write_text("".join("\t".join(row) + "\n" for row in rows))
        return
    columns = get_terminal_size().columns
    lines = _lines(rows, columns)
    lines += ["", f"{format_bytes(library.size_bytes)} in all; Hub cache: {one_line(str(library.hub_cache))}"]
    streams.write_text("".join(f"{line}\n" for line in lines))


def print_known(streams: Streams, models: Sequence[KnownModel]) -> None:
    """A model a line with what it is for; parted by tabs in a pipe."""
    rows = [
        (
            one_line(model.name),
            f"{format_bytes(model.about_bytes)}" if model.about_bytes else "",
            format_tokens(model.context) if model.context else "",
            one_line(model.licence),
            one_line(model.purpose),
        )
        for model in models
    ]
    if not streams.out_is_terminal:
        streams.write_text("".join("\t".join(row) + "\n" for row in rows))
        return
    streams.write_text("".join(f"{line}\n" for line in _known_lines(rows, get_terminal_size().columns)))


def _known_lines(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Figures in columns; the purpose after them where there is room, else below."""
    from textwrap import wrap

    figures = aligned([row[:4] for row in (("name", "about", "context", "licence", ""), *rows)])
    if max(map(len, figures)) >= columns:
        figures = aligned([row[:2] for row in (("name", "about"), *rows)])
    indent = max(map(len, figures)) + 2
    beside = indent + _PURPOSE_COLUMNS < columns
    lines = [figures[0]]
    for figure, row in zip(figures[1:], rows, strict=True):
        text = wrap(row[4], columns - 1 - (indent if beside else 4)) or [""]
        if beside:
            lines.append(f"{figure:<{indent}}{text[0]}".rstrip())
            lines += [" " * indent + line for line in text[1:]]
        else:
            lines += [figure, *(f"    {line}" for line in text if line)]
    return lines


def print_unreadable(streams: Streams, library: Library) -> None:
    """A warning where the Hub cache could not be looked into."""
    if not library.readable:
        streams.err.write(f"warning: the Hub cache {one_line(str(library.hub_cache))} cannot be read\n")
        streams.err.flush()


def _lines(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """As many columns as there is room for; where names alone fill the line, figures go below them."""
    for shown in ((0, 1, 2, 3, 4, 5), (0, 2, 3, 4), (0, 2, 3)):
        lines = aligned([[row[i] for i in shown] for row in (_HEAD, *rows)])
        if max(map(len, lines)) < columns:
            return lines
    figures = aligned([["", *row[1:4]] for row in rows])
    if max(map(len, figures)) >= columns:
        figures = ["\n".join(_wrapped("  ".join(row[1:4]), columns)) for row in rows]
    return [line for row, below in zip(rows, figures, strict=True) for line in (row[0], below)]


def _wrapped(text: str, columns: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, max(columns - 1, 3), initial_indent="  ", subsequent_indent="  ")


def _row(model: KeptModel) -> tuple[str, ...]:
    name = one_line(model.name) or f"({one_line(model.repo)})"
    kind = one_line(
        " ".join(filter(None, (model.kind, f"({model.arch})" if model.kind and model.arch else "")))
    )
    date = datetime.fromtimestamp(model.used_s).astimezone().strftime("%Y-%m-%d")
    where = f"package {model.origin}" if model.source == "package" else "Hub cache"
    return name, one_line(model.quant), _size(model), date, kind or one_line(model.arch), where


def _size(model: KeptModel) -> str:
    if model.complete:
        return format_bytes(model.size_bytes)
    there = (
        done_of(model.size_bytes, model.total_bytes) if model.total_bytes else format_bytes(model.size_bytes)
    )
    return f"{there}, partial"


def removal_text(removals: Sequence[Removal]) -> str:
    """What is about to go, a line a name, to ask about."""
    lines = []
    for removal in removals:
        what = f" ({', '.join(map(one_line, removal.titles))})" if removal.titles else ""
        lines.append(f"{one_line(removal.name)}{what}: {format_bytes(removal.size_bytes)}\n")
    return "".join(lines)


def print_freed(streams: Streams, freed: Freed) -> None:
    """What is free now, and what is not and why."""
    line = f"{one_line(freed.name)}: {format_bytes(freed.freed_bytes)} freed"
    if freed.shared_bytes:
        line += f"; {format_bytes(freed.shared_bytes)} stay, since another entry needs them"
    streams.write_text(f"{line}\n")
