from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.ui import history_file
from llmrun.ui.history_file import MAX_ENTRY_BYTES, MAX_FILE_BYTES, HistoryFile

from tests.support.waiting import TIMEOUT_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.jsonl"


def write(path: Path, *entries: str) -> list[str]:
    """Add entries; the notes."""
    history = HistoryFile(path)
    for entry in entries:
        history.append(entry)
    return history.notes


def read(path: Path) -> list[str]:
    """The entries of a file that must be whole."""
    history = HistoryFile(path)
    entries = history.load()
    assert history.notes == []
    return entries


def test_entries_come_back_in_order_whatever_they_hold(path: Path) -> None:
    entries = ["one", "two\nlines", "tab\t \x1b[2J\x00\r end", "日本 🙂", "one"]
    assert write(path, *entries) == []
    assert read(path) == entries


def test_the_file_is_private_and_holds_no_control_characters(path: Path) -> None:
    write(path, "\x1b]0;title\x07 é\x9b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    content = path.read_bytes()
    assert all(0x20 <= byte < 0x7F for byte in content.removesuffix(b"\n"))


def test_a_file_that_others_could_read_becomes_private(path: Path) -> None:
    write(path, "a")
    path.chmod(0o644)
    write(path, "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == ["a", "b"]


def test_a_missing_file_is_an_empty_history(path: Path) -> None:
    assert read(path) == []


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\xfe",
        b"{",
        b"[]",
        b'{"schema":"other/1","text":"x"}',
        b'{"schema":"llmrun.input/1","text":1}',
        b"[" * 100_000,
    ],
)
def test_damaged_lines_are_ignored_with_one_note_and_then_gone(path: Path, damage: bytes) -> None:
    write(path, "before")
    with path.open("ab") as file:
        file.write(damage + b"\n")
    write(path, "after")
    history = HistoryFile(path)
    assert history.load() == ["before", "after"]
    assert len(history.notes) == 1
    history.append("new")
    assert read(path) == ["before", "after", "new"]


def test_an_entry_after_a_torn_one_is_whole(path: Path) -> None:
    write(path, "a")
    with path.open("ab") as file:
        file.write(b'{"schema":"llm')
    write(path, "b")
    assert HistoryFile(path).load() == ["a", "b"]


@given(st.binary(max_size=200))
def test_no_content_stops_a_chat(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("history") / "history"
    path.write_bytes(content)
    history = HistoryFile(path)
    history.load()
    history.append("kept")
    assert HistoryFile(path).load()[-1] == "kept"


def make_folder(path: Path) -> None:
    path.mkdir(parents=True)


def make_pipe(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)


def make_folder_a_file(path: Path) -> None:
    path.parent.write_text("")


@pytest.mark.parametrize("obstacle", [make_folder, make_pipe, make_folder_a_file])
def test_what_cannot_be_used_is_left_alone_with_one_note(path: Path, obstacle: object) -> None:
    assert callable(obstacle)
    obstacle(path)
    history = HistoryFile(path)
    assert history.load() == []
    history.append("a")
    history.append("b")
    assert len(history.notes) == 1
    assert str(path) in history.notes[0]


def test_the_file_stays_bounded_and_keeps_the_newest(path: Path) -> None:
    entries = [f"{number} {'x' * 30_000}" for number in range(60)]
    history = HistoryFile(path)
    sizes = []
    for entry in entries:
        history.append(entry)
        sizes.append(path.stat().st_size)
    assert max(sizes) <= MAX_FILE_BYTES
    kept = read(path)
    assert len(kept) > 10
    assert kept == entries[-len(kept) :]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_of_a_file_grown_elsewhere_the_end_is_read(path: Path) -> None:
    write(path, "old")
    line = json.dumps({"schema": "llmrun.input/1", "text": "y" * 1000}) + "\n"
    with path.open("a") as file:
        file.write(line * (2 * MAX_FILE_BYTES // len(line)))
    kept = read(path)
    assert set(kept) == {"y" * 1000}
    assert len(kept) * len(line) <= MAX_FILE_BYTES


def test_an_oversized_entry_is_not_kept(path: Path) -> None:
    assert write(path, "a", "x" * MAX_ENTRY_BYTES, "b") == []
    assert read(path) == ["a", "b"]


def test_a_linked_file_stays_linked(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    target = tmp_path / "target"
    target.write_bytes(b"damaged\n")
    path.symlink_to(target)
    history = HistoryFile(path)
    history.load()
    history.append("a")
    assert path.is_symlink()
    assert read(target) == ["a"]


WRITER = """
import sys
from pathlib import Path
from llmrun.ui import history_file
from llmrun.ui.history_file import HistoryFile
history = HistoryFile(Path(sys.argv[1]))
for number in range(40):
    history.append(f"{sys.argv[2]} {number} " + "z" * 30_000)
"""


def test_two_chats_share_the_file_also_while_it_is_shortened(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "ab"]
    assert [writer.wait(TIMEOUT_S) for writer in writers] == [0, 0]
    kept = [entry.split()[:2] for entry in read(path)]
    for name in "ab":
        numbers = [int(number) for writer, number in kept if writer == name]
        assert numbers == list(range(40 - len(numbers), 40))


def test_an_entry_lands_in_the_file_that_another_chat_has_just_put_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "a")
    lock = history_file._lock
    replaced: list[Path] = []

    def lock_after_a_replacement(descriptor: int) -> None:
        if not replaced:
            replaced.append(path)
            beside = path.with_name("beside")
            shutil.copy(path, beside)
            beside.replace(path)
        lock(descriptor)

    monkeypatch.setattr(history_file, "_lock", lock_after_a_replacement)
    write(path, "b")
    assert replaced
    assert read(path) == ["a", "b"]


def test_an_entry_waits_while_another_chat_rewrites_the_file(path: Path) -> None:
    write(path, "a")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=write, args=(path, "b"))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert read(path) == ["a"]
    thread.join(TIMEOUT_S)
    assert read(path) == ["a", "b"]
