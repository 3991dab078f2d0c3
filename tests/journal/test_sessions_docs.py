"""The page about sessions names every record and field, and its example runs."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from llmrun.journal.session_export import to_json
from llmrun.journal.session_names import LONGEST_NAME_BYTES
from llmrun.journal.sessions import SessionStore

from tests.support.sessions import transcript_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "sessions.md").read_text()


@pytest.fixture
def every_record(store: SessionStore, folder: Path) -> Path:
    """A file with a record of each kind."""
    with closing(store.create("a", model="m", system="")) as session:
        session.add_turn("first question", "a")
        session.undo()
        session.add_turn("second question", "b")
        session.clear()
        session.set_system("s")
        session.set_model("n")
    return folder / "a.jsonl"


def test_every_kind_and_field_is_described(every_record: Path) -> None:
    common = {"schema", "number", "time"}
    rows = dict(re.findall(r"^\| `(llmrun\.[^`]+)` \|(.*)$", PAGE, flags=re.MULTILINE))
    records = [json.loads(line) for line in every_record.read_text().splitlines()]
    assert {record["schema"] for record in records} == set(rows)
    for record in records:
        assert common <= set(record)
        fields = set(re.findall(r"`([a-z_]+)`", rows[record["schema"]].rpartition("|")[0].rpartition("|")[0]))
        assert fields == set(record) - common


def test_the_export_is_described(store: SessionStore) -> None:
    with closing(store.unsaved(model="m", system="")) as session:
        session.add_turn("u", "a")
        document = to_json(transcript_of(session))
    described = PAGE[PAGE.index("JSON is one") :]
    turns = document["turns"]
    assert isinstance(turns, list)
    for name in {*document, *turns[0]} - {"schema"}:
        assert f"`{name}`" in described


def test_the_limit_is_the_documented_one() -> None:
    assert f"more than {LONGEST_NAME_BYTES} bytes" in " ".join(PAGE.split())


def test_the_example_prints_the_messages(every_record: Path) -> None:
    command = re.findall(r"^python3 .*$", PAGE, flags=re.MULTILINE)[0].replace(
        "NAME.jsonl", str(every_record)
    )
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert answer.stdout == "first question\nsecond question\n"
