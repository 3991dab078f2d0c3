"""What a context holds, as rows of names and texts."""

from __future__ import annotations

from llmrun.events import ContextUse
from llmrun.units import format_count


def context_rows(use: ContextUse | None, left_out: int, turns: int, summary: str) -> list[tuple[str, str]]:
    """The parts of the last prompt, and what of a conversation of `turns` exchanges was not in it."""
    rows = []
    if use is not None:
        rows.append(("last prompt", ", ".join(prompt_parts(use))))
        rows.append(("free", f"{format_count(use.free_tokens)}, {answer_part(use)} besides"))
    if left_out:
        rows.append(
            ("left out", f"the first {format_count(2 * left_out)} of {format_count(2 * turns)} messages")
        )
    if summary:
        rows.append(("summary", summary))
    return rows


def prompt_parts(use: ContextUse) -> list[str]:
    """What a prompt consists of, in its order; what there is none of is not named."""
    parts = (
        ("system", use.system_tokens),
        ("history", use.history_tokens),
        ("newest", use.newest_tokens),
    )
    return [f"{name} {format_count(tokens)}" for name, tokens in parts if tokens]


def answer_part(use: ContextUse) -> str:
    """What is kept free for the answer."""
    return f"answer {format_count(use.answer_tokens)}"
