"""Exports hold every text as it was said."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import UsageError, WriteFailure
from llmrun.journal.session_export import to_json, to_markdown, write_export
from llmrun.journal.session_records import Transcript, Turn
from llmrun.journal.sessions import SessionStore

from tests.support.sessions import transcript_of

AT = datetime(2025, 3, 1, 12, tzinfo=UTC)
TEXTS = st.text(
    st.one_of(st.sampled_from("`~#\n\r <>&|"), st.characters(codec="utf-8")), min_size=1, max_size=40
)


def transcript(*turns: Turn, system: str = "") -> Transcript:
    return Transcript("a", AT, "m", system, turns)


@given(system=TEXTS, pairs=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4))
def test_all_texts_stand_in_order_and_unchanged(system: str, pairs: list[tuple[str, str, str]]) -> None:
    said = transcript(*(Turn(u, a, r, "stop", "m", AT) for u, r, a in pairs), system=system)
    text, place = to_markdown(said), 0
    for part in (system, *(part for pair in pairs for part in pair)):
        place = text.index(part, place) + len(part)
    document = json.loads(json.dumps(to_json(said)))
    assert document["system"] == system
    assert [(t["user"], t["reasoning"], t["answer"]) for t in document["turns"]] == pairs


@pytest.mark.parametrize(
    ("answer", "fence"),
    [
        ("```python\nx = 1", "```"),
        ("~~~~\nx\n~~~", "~~~~"),
        ("````\n```\nx", "````"),
        ("```\na\n```\n  ```\nb", "```"),
        ("```\n~~~\r\n", "```"),
    ],
)
def test_a_code_block_left_open_is_closed_behind_the_answer(answer: str, fence: str) -> None:
    text = to_markdown(transcript(Turn("u", answer, "", "interrupted", "m", AT)))
    assert f"{answer}\n{fence}\n\n" in text


@pytest.mark.parametrize(
    "answer", ["```\na\n```", "a ``` b", "    ```\nindented", "``` a`b", "~~~\n~~~~", "``", "```\n````  "]
)
def test_text_without_an_open_block_gets_nothing_added(answer: str) -> None:
    text = to_markdown(transcript(Turn("u", answer, "", "stop", "m", AT)))
    assert text.endswith(f"\n\n{answer}\n")


def test_reasoning_is_folded_and_cannot_leave_its_fold() -> None:
    reasoning = "hm ````\n</details>\n```"
    text = to_markdown(transcript(Turn("u", "a", reasoning, "stop", "m", AT)))
    assert f"`````text\n{reasoning}\n`````\n\n</details>" in text


def test_an_interrupted_answer_is_marked_and_others_are_not() -> None:
    whole, cut = Turn("u", "a", "", "stop", "m", AT), Turn("v", "b", "", "interrupted", "m", AT)
    assert "interrupted" not in to_markdown(transcript(whole))
    assert "interrupted" in to_markdown(transcript(cut))
    flags = [turn["interrupted"] for turn in json.loads(json.dumps(to_json(transcript(whole, cut))))["turns"]]
    assert flags == [False, True]


def test_files_hold_the_same_by_their_ending(store: SessionStore, tmp_path: Path) -> None:
    with closing(store.create("a", model="m", system="s")) as session:
        session.add_turn("é\r\n🦙\x1b", "b", reasoning="r", usage={"prompt_tokens": 1})
        said = transcript_of(session)
    write_export(tmp_path / "a.MD", said)
    write_export(tmp_path / "a.json", said)
    assert (tmp_path / "a.MD").read_bytes() == to_markdown(said).encode()
    document = json.loads((tmp_path / "a.json").read_bytes())
    assert document == to_json(said)
    assert document["schema"] == "llmrun.session_export/1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.MD", "a.json", "data"]


@pytest.mark.parametrize("name", ["a", "a.txt", "a.md.bak", ".md"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"."):
        write_export(tmp_path / name, transcript())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("mine")
    with pytest.raises(WriteFailure, match="exists"):
        write_export(path, transcript())
    (tmp_path / "dangling.md").symlink_to(tmp_path / "nowhere")
    with pytest.raises(WriteFailure):
        write_export(tmp_path / "dangling.md", transcript())
    assert path.read_text() == "mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.md", "dangling.md"]


def test_a_folder_that_is_not_there_is_a_write_failure(tmp_path: Path) -> None:
    with pytest.raises(WriteFailure):
        write_export(tmp_path / "none" / "a.md", transcript())


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_file_systems_without_hard_links_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "a.md"
    write_export(path, transcript())
    assert path.read_text() == to_markdown(transcript())
    with pytest.raises(WriteFailure):
        write_export(path, transcript(system="other"))
    assert path.read_text() == to_markdown(transcript())
    assert list(tmp_path.iterdir()) == [path]


def short(write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    """A disk with room for one write of seven bytes."""
    left = iter([7])

    def write_some(descriptor: int, data: bytes) -> int:
        room = next(left, None)
        if room is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, bytes(data)[:room])

    return write_some


def test_a_disk_that_fills_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", short(os.write))
    with pytest.raises(WriteFailure) as caught:
        write_export(tmp_path / "a.json", transcript())
    assert "space" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
