"""How a download looks: rates, lines in a log, silence."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmrun.reports.download import (
    Downloaded,
    DownloadEvent,
    FileChecked,
    FileDamaged,
    FileDone,
    FileProgress,
    FileRetried,
    FileStarted,
    FileWaiting,
    HubAwaited,
)
from llmrun.ui.download_view import DownloadView, Rate
from llmrun.ui.streams import Streams

MIB = 1 << 20
EVENTS: list[DownloadEvent] = [
    HubAwaited("hub:81", 2.0),
    FileStarted("a/m.gguf", 1, 2, 8 * MIB, MIB),
    FileWaiting("a/m.gguf", MIB, 8 * MIB),
    FileChecked("a/m.gguf", MIB // 2, MIB),
    *(FileProgress("a/m.gguf", n * MIB, 8 * MIB, n * MIB, n * MIB, 9 * MIB) for n in range(1, 8)),
    HubAwaited("files:82", 3.0),
    *(FileRetried("a/m.gguf", f"the line broke ({n})", 1.0, 3 * MIB) for n in range(20)),
    FileDone("a/m.gguf", Path("a"), 8 * MIB, 7 * MIB, "sha256"),
    FileStarted("n.gguf", 2, 2, MIB, 0),
    FileDone("n.gguf", Path("n"), MIB, 0, "size"),
    Downloaded("u/r", "0" * 40, (Path("a"), Path("n")), 9 * MIB, 7 * MIB),
]


def shown(events: Sequence[DownloadEvent], *, quiet: bool = False) -> str:
    err = io.StringIO()
    view = DownloadView(Streams(io.BytesIO(), err, False, False, {"TERM": "xterm"}), quiet=quiet)
    for event in events:
        view.take(event)
    view.close()
    return err.getvalue()


def test_a_log_gets_a_line_a_file_and_few_of_setbacks() -> None:
    begun, broke, done, there = shown(EVENTS).splitlines()
    assert "8.00 MiB" in begun
    assert "file 1 of 2" in begun
    assert "1.00 MiB are here" in begun
    assert "the line broke (0)" in broke
    assert "3.00 MiB" in broke
    assert "verified" in done
    assert "here already" in there


def test_a_file_that_comes_smoothly_is_one_line() -> None:
    smooth = [event for event in EVENTS if not isinstance(event, FileRetried)]
    line, there = shown(smooth).splitlines()
    assert "here already" in there
    assert "a/m.gguf: 8.00 MiB" in line
    assert line.endswith("verified")


def test_a_line_that_is_broken_off_ends() -> None:
    assert shown(EVENTS[:7]).endswith("\n")


def test_each_damaged_file_is_told_and_none_in_the_name_of_another() -> None:
    checked: list[DownloadEvent] = []
    for no in range(1, 4):
        checked.append(FileStarted(f"m{no}.gguf", no, 3, MIB, 0))
        checked += [FileChecked(f"m{no}.gguf", MIB // 2, MIB)] * (no - 1)
        checked.append(FileDamaged(f"m{no}.gguf", f"its digest is {no}"))
    checked += [HubAwaited("hub:81", 2.0), FileStarted("m1.gguf", 1, 1, MIB, 0)]
    lines = shown([*checked, FileDone("m1.gguf", Path("m"), MIB, MIB, "sha256")]).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["m1.gguf", "m2.gguf", "m3.gguf", "m1.gguf"]
    assert all(f"its digest is {no}" in line for no, line in enumerate(lines[:3], 1))
    assert "verified" in lines[3]


def test_a_file_that_is_begun_anew_begins_a_line() -> None:
    begun = FileStarted("m.gguf", 1, 1, MIB, 0), FileProgress("m.gguf", 1, MIB, 1, 1, MIB)
    lines = shown([*begun, *begun, FileDone("m.gguf", Path("m"), MIB, MIB, "sha256")]).splitlines()
    assert [line.count("m.gguf") for line in lines] == [1, 1]


def test_quiet_is_silent() -> None:
    assert shown(EVENTS, quiet=True) == ""


def test_names_from_the_hub_cannot_drive_the_terminal() -> None:
    name = "m\x1b[31m\r\x07.gguf"
    text = shown([FileStarted(name, 1, 1, 5, 0), FileDone(name, Path("a"), 5, 5, "sha256")])
    assert text.isascii() is False
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.bytes_per_s is None
    for second in range(60):
        rate.add(second, second * 100)
    assert rate.bytes_per_s == pytest.approx(100)
    rate.add(60, 0)
    assert rate.bytes_per_s is None


def test_a_rate_forgets_what_was_long_ago() -> None:
    rate = Rate()
    for second in range(20):
        rate.add(second, 1000 * second)
    for second in range(20, 40):
        rate.add(second, 19_000 + 10 * (second - 19))
    assert rate.bytes_per_s == pytest.approx(10)
