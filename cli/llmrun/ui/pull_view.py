"""The quantizations of a repository as a table, the question which one, and the word after a download."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from shutil import get_terminal_size

from llmrun.reports.pull import Offers, Pulled, QuantOffer
from llmrun.ui.ask import ask_line
from llmrun.ui.notes import aligned
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_count, format_tokens

_PLAIN_COLUMNS = 80
_WIDE, _MIDDLE = 72, 50
_LONGEST_NAME = 28
_FITS = {
    "gpu": "✓ whole on the GPU",
    "part": "◐ partly on the GPU",
    "cpu": "✓ on the CPU",
    "none": "✗ no",
    None: "",
}
_SHORT_FITS = {"gpu": "✓ GPU", "part": "◐ GPU", "cpu": "✓ CPU", "none": "✗", None: ""}


def print_offers(streams: Streams, offers: Offers) -> None:
    """The table on stdout."""
    columns = get_terminal_size().columns if streams.out_is_terminal else _PLAIN_COLUMNS
    streams.write_text(offers_text(offers, columns))


def offers_text(offers: Offers, columns: int) -> str:
    """What the repository holds, a line a quantization; the marked one has an arrow."""
    from textwrap import wrap

    types = offers.type_k if offers.type_k == offers.type_v else f"{offers.type_k}/{offers.type_v}"
    about = one_line(offers.title) or offers.repo
    if offers.n_params:
        about += f", {_parameters(offers.n_params)} parameters"
    if offers.kind:
        about += f". It generates no text: it is {one_line(offers.kind)}"
    cache = (
        f"KV cache of {format_tokens(offers.n_ctx)} at {types}: {format_bytes(offers.kv_bytes)}, "
        "the same for all"
    )
    moved = f"{format_bytes(offers.received_bytes)} received for this" if offers.received_bytes else ""
    wide, middle = columns >= _WIDE, columns >= _MIDDLE
    head = ["", "", "name", "size"]
    head += (["bits"] if middle else []) + (["memory"] if wide else []) + ["fits", ""]
    rows = [head, *(_row(offers, index, wide=wide, middle=middle) for index in range(len(offers.quants)))]
    lines = [line for text in (about, cache, moved) for line in wrap(text, columns - 1)]
    return "\n".join([*lines, *aligned(rows)]) + "\n"


def _parameters(count: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return format_count(count)


def _row(offers: Offers, index: int, *, wide: bool, middle: bool) -> list[str]:
    offer = offers.quants[index]
    arrow = "→" if index == offers.marked else ""
    name = one_line(offer.quant)
    name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    row = [arrow, str(index + 1), name, format_bytes(offer.size_bytes)]
    row += [f"{offer.bits:.1f}"] if middle else []
    row += [format_bytes(offer.sum_bytes)] if wide else []
    return [*row, (_FITS if middle else _SHORT_FITS)[offer.where], _here(offer, short=not wide)]


def _here(offer: QuantOffer, *, short: bool) -> str:
    if offer.here:
        return "here"
    if offer.here_bytes:
        return "begun" if short else f"{format_bytes(offer.here_bytes)} here"
    return ""


def ask_which(streams: Streams, offers: Offers, find: Callable[[str], int | str]) -> int | None:
    """The index of the quantization the user takes, None where they leave.

    `find` turns a name into an index, or into a sentence that says what is wrong with it.

    Raises:
        Interrupted: Ctrl-C.
    """
    streams.err.write(offers_text(offers, get_terminal_size().columns))
    marked = offers.marked
    question = "Number or name?"
    if marked is not None:
        question += f" [{marked + 1}, {one_line(offers.quants[marked].quant)}]"
    while True:
        answer = ask_line(streams, question)
        if answer is None or answer.lower() in ("q", "quit", "exit"):
            return None
        if not answer and marked is not None:
            return marked
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(offers.quants):
            return int(answer) - 1
        found = find(answer) if answer else "none fits, so none is taken unasked"
        if isinstance(found, int):
            return found
        streams.err.write(f"{one_line(found)}\n")


def print_pulled(streams: Streams, pulled: Pulled) -> None:
    """How the model is run from now on."""
    if not pulled.repo:
        streams.err.write(f"{one_line(pulled.name)} comes in a Python package and is here\n")
    if pulled.kind:
        streams.err.write(f"it generates no text: it is {one_line(pulled.kind)}\n")
    else:
        streams.err.write(f"talk to it: llmrun chat {shlex.quote(one_line(pulled.name))}\n")
    streams.err.flush()
