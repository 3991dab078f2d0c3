"""The user's message from arguments, files and standard input."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from llmrun.app.prompt_input import join_prompt, read_text, text_or_file
from llmrun.errors import UsageError


def test_files_come_first_under_their_names() -> None:
    joined = join_prompt([("a.txt", "one\n"), ("b.txt", "two")], ["sum up"], "piped\n")
    assert joined.split("\n\n") == [
        "--- a.txt ---\none\n--- end of a.txt ---",
        "--- b.txt ---\ntwo\n--- end of b.txt ---",
        "sum up",
        "piped",
    ]


def test_standard_input_alone_is_taken_exactly() -> None:
    assert join_prompt([], [], "  two\n\nlines \n") == "  two\n\nlines \n"


@pytest.mark.parametrize("stdin", [None, "", " \n\t\n"])
def test_no_text_at_all_is_refused(stdin: str | None) -> None:
    with pytest.raises(UsageError):
        join_prompt([], ["", "  "], stdin)


def test_at_sign_names_a_file_and_two_are_one(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_bytes(b"\xef\xbb\xbfhello \xc3\xa9\r\n")
    assert text_or_file(f"@{note}") == "hello é\r\n"
    assert text_or_file("@@home") == "@home"
    assert text_or_file("a@b") == "a@b"


@pytest.mark.parametrize("value", ["@", "@/nowhere/at/all", "@.", "@~nobody-of-that-name/x"])
def test_a_file_that_cannot_be_read_is_named(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        text_or_file(value)
    assert repr(value[1:]) in caught.value.message
    assert "@@" in caught.value.hint


def test_a_file_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmrun.app.prompt_input.MAX_TEXT_BYTES", 4096)
    with pytest.raises(UsageError, match=r"4\.00 KiB"):
        text_or_file("@/dev/zero")
    assert len(read_text(BytesIO(b"x" * 4096), "a.txt")) == 4096


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    with pytest.raises(UsageError, match=r"a\.bin.*byte 2 is 0xff"):
        read_text(BytesIO(b"ok\xff"), "a.bin")
    with pytest.raises(UsageError, match="character 3"):
        text_or_file(b"ok\xff".decode("utf-8", "surrogateescape"))
