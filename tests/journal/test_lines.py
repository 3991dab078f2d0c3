from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.lines import append, read

POSIX = pytest.mark.skipif(os.name != "posix", reason="POSIX files")


def rec(at: int) -> dict[str, object]:
    return {"schema": "test/1", "at": at}


def in_child(code: str, *args: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", "import sys; from pathlib import Path\n" + code, *map(str, args)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log.jsonl"
    for at in range(3):
        append(path, rec(at), sync=at == 2)
    journal = read(path)
    assert list(journal.records) == [rec(0), rec(1), rec(2)]
    assert journal.damaged == 0


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    journal = read(tmp_path / "none.jsonl")
    assert (journal.records, journal.damaged) == ((), 0)
    assert list(tmp_path.iterdir()) == []


@POSIX
def test_file_and_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "log.jsonl"
    append(path, rec(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, rec(0))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-5])
    append(path, rec(1))
    journal = read(path)
    assert list(journal.records) == [rec(0), rec(1)]
    assert journal.damaged == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"schema":1}',
        b'{"schema":"a","x":NaN}',
        b"[" * 100_000,
        b"\x00" * 512,
        b'{"schema":"a","x":' + b"9" * 5000 + b"}",
    ],
    ids=lambda line: repr(line[:12]),
)
def test_damaged_lines_are_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.jsonl"
    append(path, rec(0))
    with path.open("ab") as file:
        file.write(line + b"\n\n")
    append(path, rec(1))
    journal = read(path)
    assert list(journal.records) == [rec(0), rec(1)]
    assert journal.damaged == 1


@given(cut=st.data(), texts=st.lists(st.text(st.characters(codec="utf-16")), min_size=1, max_size=4))
def test_any_cut_loses_at_most_the_line_it_falls_in(
    cut: st.DataObject, texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "log.jsonl"
    records = [{"schema": "test/1", "text": text} for text in texts]
    for record in records:
        append(path, record)
    whole = path.read_bytes()
    assert whole.count(b"\n") == len(records)
    kept = cut.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:kept])
    complete = whole[:kept].count(b"\n")
    journal = read(path)
    assert list(journal.records[:complete]) == records[:complete]
    assert len(journal.records) + journal.damaged in (complete, complete + 1)


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    code = (
        "from llmrun.journal.lines import append\n"
        "PATH = Path(sys.argv[1])\nfor at in range(200):\n"
        "    append(PATH, {'schema': 'test/1', 'who': sys.argv[2], 'at': at, 'pad': 'x' * 9_000})\n"
    )
    writers = [in_child(code, path, who) for who in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    for writer in writers:
        writer.communicate()
    journal = read(path)
    assert journal.damaged == 0
    for who in "ab":
        assert [r["at"] for r in journal.records if r["who"] == who] == list(range(200))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_a_write_failure() -> None:
    with pytest.raises(WriteFailure) as caught:
        append(Path("/dev/full"), rec(0))
    assert "/dev/full" in caught.value.message
    assert "LLMRUN_DATA_DIR" in caught.value.hint


@POSIX
def test_space_that_ends_within_a_line_is_a_write_failure_and_later_lines_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, rec(0))
    code = (
        "import resource\n"
        "from llmrun.errors import WriteFailure\n"
        "from llmrun.journal.lines import append\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: append(Path(sys.argv[1]), {'schema': 'test/1', 'pad': 'x' * 500})\n"
        "except WriteFailure: print('refused')\n"
    )
    writer = in_child(code, path)
    assert writer.communicate()[0].strip() == "refused"
    assert path.stat().st_size == 100
    append(path, rec(1))
    journal = read(path)
    assert list(journal.records) == [rec(0), rec(1)]
    assert journal.damaged == 1


def test_a_folder_in_the_way_is_a_write_failure_and_not_readable(tmp_path: Path) -> None:
    with pytest.raises(WriteFailure):
        append(tmp_path, rec(0))
    with pytest.raises(UsageError):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailure):
        append(tmp_path / "file" / "log.jsonl", rec(0))


@pytest.mark.parametrize("record", [{"at": 1}, {"schema": 1}, {"schema": "a", "x": float("nan")}])
def test_a_record_that_no_reader_could_use_is_not_written(tmp_path: Path, record: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        append(tmp_path / "log.jsonl", record)
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_one_line_of_ascii_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, {"schema": "test/1", "name": "a\nb\u2028\udc80é"})
    lines = path.read_text(encoding="ascii").splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["name"] == "a\nb\u2028\udc80é"
