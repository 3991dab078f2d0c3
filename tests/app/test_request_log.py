"""Each request leaves one record without text, and a log that cannot be written spoils nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.requests import Answered, Desk


def log_of(desk: Desk) -> Path:
    return Path(desk.env["LLMRUN_DATA_DIR"]) / "requests.jsonl"


def test_a_record_a_request_without_what_was_said(desk: Desk) -> None:
    chat = desk.chat(
        [["SECRETANSWER"], ["<think>SECRETTHOUGHT</think>b"]], system="SECRETSYSTEM", stop=["SECRETSTOP"]
    )
    answers = [Answered(tuple(chat.say("SECRETQUESTION"))).completion for _ in range(2)]
    chat.close()
    text = log_of(desk).read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert "SECRET" not in text
    assert [r["timings"]["predicted_n"] for r in records] == [a.stats.generated_tokens for a in answers]
    assert [r["usage"]["prompt_tokens"] for r in records] == [a.stats.prompt_tokens for a in answers]


def test_a_log_that_cannot_be_written_is_a_warning(desk: Desk) -> None:
    Path(desk.env["LLMRUN_DATA_DIR"]).write_text("a file in the way")
    answered = desk.run(["fine"])
    assert answered.completion.text == "fine"
    assert any("not logged" in text and "LLMRUN_DATA_DIR" in text for text in answered.notices("warning"))
