"""What a context holds, as rows of names and texts."""

from __future__ import annotations

from llmrun.events import ContextUse
from llmrun.units import format_count, format_tokens


def context_rows(use: ContextUse | None, left_out: int, turns: int, summary: str) -> list[tuple[str, str]]:
    """The parts of the last prompt, and what of a conversation of `turns` exchanges was not in it."""
    rows = []
    if use is not None:
        rows.append(("last prompt", _listed(("system", use.system_tokens), *_conversation(use))))
        rows.append(("answer", format_tokens(use.answer_tokens)))
        rows.append(("free", format_tokens(use.free_tokens)))
    if left_out:
        rows.append(
            ("left out", f"the first {format_count(2 * left_out)} of {format_count(2 * turns)} messages")
        )
    if summary:
        rows.append(("summary", summary))
    return rows


def context_figures(use: ContextUse) -> tuple[str, str]:
    """What is free, and what takes the rest; last what stays the same, since a narrow panel shows less."""
    parts = (*_conversation(use), ("answer", use.answer_tokens), ("system", use.system_tokens))
    return f"{format_count(use.free_tokens)} free", _listed(*parts)


def _conversation(use: ContextUse) -> tuple[tuple[str, int], ...]:
    return ("history", use.history_tokens), ("newest", use.newest_tokens)


def _listed(*parts: tuple[str, int]) -> str:
    """The parts there are."""
    return ", ".join(f"{name} {format_count(tokens)}" for name, tokens in parts if tokens)
