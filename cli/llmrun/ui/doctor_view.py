"""What `llmrun doctor` found, on stdout: a line each with a mark, what to do about it below."""

from __future__ import annotations

from textwrap import wrap

from llmrun.reports.doctor import DoctorReport, Finding
from llmrun.ui.page import WIDEST_TEXT, Page
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
NARROW_COLUMNS = 60
_TODO = "→ "


def print_doctor(streams: Streams, report: DoctorReport) -> None:
    """All findings, then whether a model can run."""
    page = Page(streams)
    names = max((len(found.check) for found in report.findings), default=0)
    before = ""
    for found in report.findings:
        _finding(page, found, names, named=found.check != before)
        before = found.check
    page.line()
    failures = [found.check for found in report.findings if found.level == "fail"]
    if failures:
        page.line(f"A model cannot run here: see {', '.join(failures)}.", style="bold red")
    else:
        page.line("A model can run here.", style="bold green")
    page.flush()


def _finding(page: Page, found: Finding, names: int, *, named: bool) -> None:
    from rich.text import Text

    mark, colour = MARKS[found.level]
    narrow = page.width < NARROW_COLUMNS
    indent = 2 if narrow else names + 4
    room = max(10, min(page.width, WIDEST_TEXT) - indent)
    lines = wrap(one_line(found.text), room, break_on_hyphens=False) or [""]
    if found.todo:
        lines += wrap(one_line(_TODO + found.todo), room, subsequent_indent="  ", break_on_hyphens=False)
    head = Text.assemble((mark, colour), " ", (found.check if named or narrow else "", "bold"))
    if narrow:
        page.console.print(head)
    else:
        head.pad_right(indent - len(head.plain))
        page.console.print(head.append(lines.pop(0)), soft_wrap=True)
    for line in lines:
        page.console.print(Text(" " * indent + line), soft_wrap=True)
