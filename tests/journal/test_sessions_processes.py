"""Sessions between processes: locks, races for a name, and programs that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from llmrun.journal.sessions import SessionStore

pytest.importorskip("fcntl", reason="without flock nothing is locked")

Child = Callable[..., "subprocess.Popen[str]"]


def one_turn(store: SessionStore, name: str = "a") -> None:
    with closing(store.create(name, model="m", system="s")) as session:
        session.add_turn("u", "a")


def said(store: SessionStore, name: str) -> list[str]:
    return [turn.user for turn in store.read(name).turns]


def test_a_second_chat_gets_a_copy_and_both_go_on(store: SessionStore, child: Child) -> None:
    one_turn(store)
    other = child(
        "session = store.open('a')\n"
        "session.add_turn('theirs', 'x')\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
        "session.add_turn('theirs too', 'x')\n"
        "session.close()\n"
        "print(session.copied_from, flush=True)\n"
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "open\n"
    with closing(store.open("A")) as mine, closing(store.open("a")) as third:
        assert (mine.name, mine.copied_from) == ("a-2", "a")
        assert (third.name, third.copied_from) == ("a-3", "a")
        assert (mine.model, mine.system) == ("m", "s")
        mine.add_turn("mine", "y")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "None\n"
        mine.add_turn("mine too", "y")
    assert said(store, "a") == ["u", "theirs", "theirs too"]
    assert said(store, "a-2") == ["u", "theirs", "mine", "mine too"]
    assert not store.exists("a-3")
    with closing(store.open("a")) as again:
        assert again.copied_from is None


def test_a_session_is_locked_from_its_beginning(store: SessionStore) -> None:
    with closing(store.create("a", model="m", system="")), closing(store.open("a")) as second:
        assert second.copied_from == "a"


def test_a_killed_chat_leaves_no_lock(store: SessionStore, child: Child) -> None:
    one_turn(store)
    other = child("session = store.open('a')\nprint('open', flush=True)\nsys.stdin.readline()\n")
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    other.kill()
    other.wait()
    with closing(store.open("a")) as session:
        assert session.copied_from is None


def test_of_several_that_begin_one_session_one_wins(store: SessionStore, child: Child) -> None:
    code = (
        "from llmrun.errors import WriteFailure\n"
        "won = 0\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for at in range(60):\n"
        "    try: session = store.create(f'race {at}', model='m', system='')\n"
        "    except WriteFailure: continue\n"
        "    session.add_turn(sys.argv[2], '')\n"
        "    won += 1\n"
        "print(won, flush=True)\n"
    )
    racers = [child(code, who) for who in "xyz"]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    won = [int(racer.communicate("\n")[0]) for racer in racers]
    assert sum(won) == 60
    assert {one.turns for one in store.list()} == {1}
    assert len(store.list()) == 60


WRITER = """
session = store.open("a")
assert session.copied_from is None
while True:
    at = len(session.turns)
    session.add_turn(str(at), "x" * (at * 7919 % 9000), reasoning="r" * (at * 31 % 50))
    os.write(1, b"%d\\n" % at)
"""


def test_every_finished_turn_survives_kill_9(store: SessionStore, child: Child) -> None:
    """The writer names a turn once the call that kept it returned; then it is killed at any moment."""
    chance = random.Random(9)
    one_turn(store)
    finished = 1
    for _ in range(50):
        writer = child("import os\n" + WRITER)
        assert writer.stdout is not None
        for _ in range(chance.randrange(4)):
            finished = int(writer.stdout.readline()) + 1
        time.sleep(chance.random() * 0.004)
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout:
            finished = int(line) + 1
        writer.wait()
        turns = said(store, "a")
        assert turns[1:] == [str(at) for at in range(1, len(turns))]
        # the turn in flight may have been written, but not yet named
        assert finished <= len(turns) <= finished + 1
        finished = len(turns)
    assert finished > 50


def test_a_writer_killed_while_it_saves_leaves_a_whole_session_or_none(
    store: SessionStore, folder: Path, child: Child
) -> None:
    chance = random.Random(10)
    code = (
        "session = store.unsaved(model='m', system='')\n"
        "for at in range(200): session.add_turn(str(at), 'x' * 500)\n"
        "store.save_as(session, f'{sys.argv[2]} begun')\n"
        "print('ready', flush=True)\n"
        "for at in range(10_000): store.save_as(session, f'{sys.argv[2]} {at}')\n"
    )
    for turn in range(10):
        writer = child(code, turn)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(chance.random() * 0.02)
        writer.kill()
        writer.wait()
    assert {(one.turns, one.problem) for one in store.list()} == {(200, "")}
