"""A conversation as a document of its own: Markdown to read, JSON to process. All text is kept as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from llmrun.errors import UsageError, WriteFailure
from llmrun.gguf.text import printable
from llmrun.journal.new_file import create_new, write_failure
from llmrun.journal.session_records import Transcript, Turn, time_text

SCHEMA = "llmrun.session_export/1"

# fenced code blocks open and close as in CommonMark 0.31, section 4.5
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")


def write_export(path: Path, transcript: Transcript) -> None:
    """Write a new file, Markdown or JSON by its ending; it appears whole or not at all.

    Raises UsageError for another ending, WriteFailure if the file exists or cannot be written.
    """
    ending = path.suffix.lower()
    if ending == ".md":
        text = to_markdown(transcript)
    elif ending == ".json":
        text = json.dumps(to_json(transcript), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    else:
        raise UsageError(f"cannot export to {printable(str(path))}", "end the name in .md or .json")
    try:
        os.close(create_new(path, text.encode(), mode=0o666))
    except FileExistsError:
        raise WriteFailure(f"{path} exists", "choose another name, or remove the file") from None
    except OSError as error:
        raise write_failure(path, error, "check that the folder exists and may be written") from error


def to_json(transcript: Transcript) -> dict[str, object]:
    """The `llmrun.session_export/1` document."""
    return {
        "schema": SCHEMA,
        "name": transcript.name,
        "created": time_text(transcript.created),
        "model": transcript.model,
        "system": transcript.system,
        "damaged_lines": transcript.damaged_lines,
        "turns": [
            {
                "time": time_text(turn.time),
                "user": turn.user,
                "answer": turn.answer,
                "reasoning": turn.reasoning,
                "interrupted": turn.interrupted,
                "finish_reason": turn.finish_reason,
                "model": turn.model,
                "usage": turn.usage,
            }
            for turn in transcript.turns
        ],
    }


def to_markdown(transcript: Transcript) -> str:
    """One section a turn; reasoning folded away, an interrupted answer marked.

    Messages stand in the text unchanged. A code block that one leaves open, as a stopped answer may, is
    closed behind it, so that it does not run on over the rest.
    """
    blocks = [f"# {transcript.name or 'Chat'}", f"Begun {time_text(transcript.created)}"]
    if transcript.system:
        blocks += ["## System", _closed(transcript.system)]
    for number, turn in enumerate(transcript.turns, 1):
        blocks += _turn_blocks(number, turn)
    return "\n\n".join(blocks) + "\n"


def _turn_blocks(number: int, turn: Turn) -> Iterator[str]:
    yield f"## {number}. User"
    yield _closed(turn.user)
    yield f"## {number}. Assistant ({turn.model})"
    if turn.reasoning:
        yield "<details>\n<summary>Reasoning</summary>"
        fence = "`" * (max((len(run) for run in re.findall("`{3,}", turn.reasoning)), default=2) + 1)
        yield f"{fence}text\n{turn.reasoning}\n{fence}"
        yield "</details>"
    yield _closed(turn.answer)
    if turn.interrupted:
        yield "*(interrupted)*"


def _closed(text: str) -> str:
    """`text`, and the end of the code block that it leaves open."""
    fence = ""
    for line in re.split(r"\r\n|\n|\r", text):
        found = _FENCE.fullmatch(line)
        if found is None:
            continue
        if not fence:
            fence = found[1]
        elif found[1][0] == fence[0] and len(found[1]) >= len(fence) and not found[2].strip(" \t"):
            fence = ""
    return f"{text}\n{fence}" if fence else text
