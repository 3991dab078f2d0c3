"""The prefix cache on screen: what is kept on disk, and why a prompt was served from it only so far."""

from __future__ import annotations

import time

from llmrun.events import Completion, PrefixReport
from llmrun.reports.cache import CacheReport
from llmrun.ui.notes import aligned
from llmrun.ui.streams import Streams
from llmrun.ui.visible import one_line
from llmrun.units import format_bytes, format_count, format_tokens


def print_cache(streams: Streams, report: CacheReport) -> None:
    """One line a prefix on stdout, sums on stderr; fields parted by tabs, on a terminal aligned."""
    rows = [
        (
            one_line(one.title),
            format_tokens(one.tokens),
            format_bytes(one.size_bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_s)),
            f"-c {one_line(one.settings.get('n_ctx', '?'))}",
        )
        for one in report.prefixes
    ]
    lines = aligned(rows) if streams.out_is_terminal and rows else ["\t".join(row) for row in rows]
    streams.write_text("".join(f"{line}\n" for line in lines))
    used, limit = format_bytes(report.used_bytes), format_bytes(report.limit_bytes)
    count = len(report.prefixes)
    kept = f"{format_count(count)} {'prefix' if count == 1 else 'prefixes'}"
    streams.err.write(f"{kept}, {used} of at most {limit} in {report.folder}\n")
    if report.damaged:
        streams.err.write(f"warning: damaged files were removed: {format_count(report.damaged)}\n")
    if report.foreign:
        streams.err.write(
            f"warning: files that are no prefixes are left alone: {format_count(report.foreign)}\n"
        )


def prefix_rows(report: PrefixReport, prompt_tokens: int) -> list[tuple[str, str]]:
    """Where the tokens of a prompt came from and where it parts from what was stored, as names and texts."""
    sources = {
        "memory": report.memory_tokens,
        "a checkpoint": report.checkpoint_tokens,
        "disk": report.disk_tokens,
    }
    cached = sum(sources.values())
    origin = next((f", from {name}" for name, count in sources.items() if count), "")
    reused = f"{format_count(cached)} of {format_count(prompt_tokens)} prompt tokens{origin}"
    rows = [("last reuse", reused)]
    if report.miss_reason:
        rows.append(("reason", report.miss_reason))
    if report.difference is not None:
        found = report.difference
        rows.append(("differs", f"after {format_tokens(found.token)}: {found.before}"))
        rows.append(("  stored", f"... {found.stored}"))
        rows.append(("  prompt", f"... {found.prompt}"))
    return rows


def print_explanation(streams: Streams, completion: Completion) -> None:
    """The same as plain lines on stderr."""
    for name, text in prefix_rows(completion.prefix, completion.stats.prompt_tokens):
        streams.err.write(f"{name}: {one_line(text)}\n")
