"""Sessions of `llmrun chat`: kept as they go, found again, whatever ends the program."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.support.cli import Cli, Terminal
from tests.support.puppet import write_puppet
from tests.support.talk import Talk, last_session, said, session_files, store_of

GREEDY = ("--temp", "0")
ANSWER = "a short answer"


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "endless.gguf", ["tick ", "tock "], loop=True, n_ctx=1 << 17).path


def chat_once(cli: Cli, *arguments: str | Path, lines: tuple[str, ...] = ()) -> str:
    """A chat on a terminal in which these lines are entered; what was shown."""
    with cli.terminal("chat", *arguments, *GREEDY, columns=150) as terminal:
        talk = Talk(terminal)
        for line in lines:
            talk.says(line)
        talk.leaves()
        return terminal.text


def prompts(shown: str) -> list[str]:
    """The rendered prompts that -v showed."""
    return re.findall(r"llmrun\.prompt: (.*?<\|go\|>)", shown, flags=re.DOTALL)


def test_a_chat_is_kept_unless_nothing_was_said(cli: Cli, model: Path) -> None:
    chat_once(cli, model)
    assert session_files(cli) == []
    chat_once(cli, model, "--no-save", lines=("hello",))
    assert session_files(cli) == []
    chat_once(cli, model, lines=("hello", "again"))
    assert said(cli) == [("hello", ANSWER), ("again", ANSWER)]
    (file,) = session_files(cli)
    assert file.stat().st_mode & 0o077 == 0


def test_a_chat_that_cannot_be_kept_goes_on_and_says_so(cli: Cli, model: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the data folder should be")
    env = {"LLMRUN_DATA_DIR": str(blocked)}
    with cli.terminal("chat", model, *GREEDY, columns=150, env=env) as terminal:
        talk = Talk(terminal)
        talk.says("hello")
        talk.leaves()
        assert "this chat is not saved" in terminal.text
        assert ANSWER in terminal.text
    ended = cli("chat", model, "--session", "s", stdin=b"hello", env=env)
    assert (ended.status, ended.out) == (2, b"")  # a session asked for by name is not a thing to go without


def test_a_resumed_chat_asks_what_an_uninterrupted_one_would(cli: Cli, model: Path) -> None:
    flags = ("-sys", "Be brief.", "-v")
    whole = prompts(chat_once(cli, model, *flags, "--no-save", lines=("one", "two", "three")))
    chat_once(cli, model, *flags, lines=("one", "two"))
    shown = chat_once(cli, "--continue", "-v", lines=("three",))
    assert "2 turns" in shown
    assert prompts(shown) == whole[2:]
    assert len(whole) == 3
    assert len(session_files(cli)) == 1


def test_a_session_is_found_from_another_folder(cli: Cli, model: Path) -> None:
    (cli.folder / "m.gguf").symlink_to(model)
    chat_once(cli, "m.gguf", lines=("one",))
    (cli.folder / "m.gguf").rename(cli.folder / "moved.gguf")
    assert cli.here("chat", "--continue", stdin=b"two").status == 3
    (cli.folder / "moved.gguf").rename(cli.folder / "m.gguf")
    elsewhere = cli.folder / "elsewhere"
    elsewhere.mkdir()
    other = Cli(elsewhere, cli.cache, {"LLMRUN_DATA_DIR": str(cli.data_dir)})
    assert other.here("chat", "--continue", *GREEDY, stdin=b"two").text == ANSWER


def test_a_named_session_is_begun_and_gone_on_with(cli: Cli, model: Path) -> None:
    chat_once(cli, model, "--session", "trip", lines=("one",))
    chat_once(cli, model, lines=("between",))
    chat_once(cli, "--session", "Trip", lines=("two",))
    assert [turn.user for turn in store_of(cli).read("trip").turns] == ["one", "two"]
    assert [file.name for file in session_files(cli)].count("trip.jsonl") == 1
    assert cli.here("chat", model, "--session", "../trip", stdin=b"x").status == 2


def test_without_saving_a_session_can_still_be_gone_on_with(cli: Cli, model: Path) -> None:
    chat_once(cli, model, "--session", "trip", lines=("one",))
    before = session_files(cli)[0].read_bytes()
    shown = chat_once(cli, "--session", "trip", "--no-save", "-v", lines=("two",))
    assert "<|user|>one" in prompts(shown)[0]
    assert [file.read_bytes() for file in session_files(cli)] == [before]


def test_a_piped_message_goes_on_with_a_session_when_asked_to(cli: Cli, model: Path) -> None:
    assert cli.here("chat", "--continue", stdin=b"x").status == 2
    assert cli.here("chat", model, *GREEDY, "--session", "s", stdin=b"one").text == ANSWER
    ended = cli.here("chat", *GREEDY, "--continue", stdin=b"two")
    assert (ended.status, ended.text, ended.err) == (0, ANSWER, "")
    assert said(cli) == [("one", ANSWER), ("two", ANSWER)]
    cli.here("chat", model, *GREEDY, stdin=b"three")
    assert len(session_files(cli)) == 1


def test_the_list_is_lines_of_fields(cli: Cli, model: Path) -> None:
    ended = cli.here("chat", "--list-sessions")
    assert (ended.status, ended.text, ended.err) == (0, "", "")
    for name, words in (("a", "first [bold]\tquestion\n\x1b[2J"), ("b", "other " * 40)):
        cli.here("chat", model, *GREEDY, "--session", name, stdin=words.encode())
    (cli.data_dir / "sessions" / "broken.jsonl").write_text("{}\n")
    ended = cli.here("chat", "--list-sessions")
    assert ended.status == 0
    assert "\x1b" not in ended.text
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in ended.text.splitlines()}
    assert list(rows) == ["broken", "b", "a"]
    assert all(len(row) == 4 for row in rows.values())
    assert rows["a"][1:3] == ["1", str(model)]
    assert rows["a"][3].startswith("first [bold] question")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", rows["a"][0])


def test_the_list_is_a_table_on_a_terminal(cli: Cli, model: Path) -> None:
    for name in ("a", "a longer 名前"):
        cli.here("chat", model, *GREEDY, "--session", name, stdin=b"first words")
    with cli.terminal("chat", "--list-sessions") as terminal:
        assert terminal.ended() == 0
        lines = [line for line in terminal.display if line]
        assert b"\t" not in terminal.raw
    assert len(lines) == 2
    assert all(f"  1  {model.name}  first words" in line for line in lines)
    assert len({cell_len(line) for line in lines}) == 1


def test_exports_are_new_files(cli: Cli, model: Path) -> None:
    assert cli.here("chat", "--export", "none.md").status == 2
    cli.here("chat", model, *GREEDY, "--session", "a", stdin=b"first words")
    cli.here("chat", model, *GREEDY, "--session", "b", stdin=b"other words")
    assert cli.here("chat", "--export", "last.md").status == 0
    assert cli.here("chat", "--export", "a.json", "--session", "a").status == 0
    last = (cli.folder / "last.md").read_text()
    assert "other words" in last
    assert ANSWER in last
    document = json.loads((cli.folder / "a.json").read_text())
    assert [(turn["user"], turn["answer"]) for turn in document["turns"]] == [("first words", ANSWER)]
    assert cli.here("chat", "--export", "last.md").status == 10
    assert (cli.folder / "last.md").read_text() == last
    assert cli.here("chat", "--export", "last.txt").status == 2
    assert cli.here("chat", "--export", "x.md", "--session", "nosuch").status == 2
    assert sorted(path.name for path in cli.folder.iterdir()) == ["a.json", "data", "last.md"]


def test_two_chats_on_one_session_do_not_disturb_each_other(cli: Cli, model: Path) -> None:
    cli.here("chat", model, *GREEDY, "--session", "s", stdin=b"one")
    flags = ("chat", "--session", "s", *GREEDY)
    with cli.terminal(*flags) as first:
        left = Talk(first)
        with cli.terminal(*flags) as second:
            right = Talk(second)
            assert "s-2" not in first.text
            assert "session s-2" in second.text
            assert "copy" in second.text
            right.says("right")
            left.says("left")
            right.leaves()
        left.leaves()
    users = {name: [turn.user for turn in store_of(cli).read(name).turns] for name in ("s", "s-2")}
    assert users == {"s": ["one", "left"], "s-2": ["one", "right"]}


def test_a_session_of_a_newer_version_is_refused(cli: Cli, model: Path) -> None:
    cli.here("chat", model, *GREEDY, "--session", "s", stdin=b"one")
    (file,) = session_files(cli)
    file.write_text(file.read_text().replace("llmrun.turn/1", "llmrun.turn/2"))
    before = file.read_bytes()
    ended = cli.here("chat", "--session", "s", stdin=b"two")
    assert ended.status == 2
    assert "llmrun.turn/2" in ended.err
    assert file.read_bytes() == before


def test_damaged_lines_are_counted(cli: Cli, model: Path) -> None:
    for message in (b"one", b"two"):
        cli.here("chat", model, *GREEDY, "--session", "s", stdin=message)
    (file,) = session_files(cli)
    header, first, second = file.read_text().splitlines()
    file.write_text("\n".join([header, first[:40], "no json", second]) + "\n")
    ended = cli.here("chat", "--session", "s", *GREEDY, stdin=b"three")
    assert ended.status == 0
    assert "2 damaged lines" in ended.err
    assert [user for user, _ in said(cli)] == ["two", "three"]


class TestEndsFromOutside:
    def test_a_signal_keeps_what_was_said_so_far(self, cli: Cli, endless: Path) -> None:
        with cli.terminal("chat", endless, *GREEDY) as terminal:
            Talk(terminal).enters("go")
            terminal.wait_for("tick tock tick")
            terminal.signal(signal.SIGTERM)
            status = terminal.ended()
            assert status == 128 + signal.SIGTERM, terminal.text[-1500:]
            assert terminal.modes == terminal.modes_before
            assert "Traceback" not in terminal.text
        (turn,) = last_session(cli).turns
        assert turn.interrupted
        assert turn.answer.startswith("tick tock tick")

    def test_a_closed_terminal_too(self, cli: Cli, endless: Path) -> None:
        with cli.terminal("chat", endless, *GREEDY) as terminal:
            Talk(terminal).enters("go")
            terminal.wait_for("tick tock tick")
            terminal.hang_up()
            assert terminal.ended() == 128 + signal.SIGHUP
        (turn,) = last_session(cli).turns
        assert turn.interrupted
        assert turn.answer.startswith("tick tock tick")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_at_the_prompt(self, cli: Cli, model: Path, number: signal.Signals) -> None:
        with cli.terminal("chat", model, *GREEDY) as terminal:
            talk = Talk(terminal)
            talk.says("one")
            terminal.send("half a thought")
            terminal.wait_for("half a thought")
            if number == signal.SIGHUP:
                terminal.hang_up()
            else:
                terminal.signal(number)
            assert terminal.ended() == 128 + number
            if number == signal.SIGTERM:
                assert terminal.modes == terminal.modes_before
                assert "Traceback" not in terminal.text
        assert said(cli) == [("one", ANSWER)]


def panels(terminal: Terminal) -> int:
    """How many panels of finished turns were shown."""
    return terminal.text.count("╯")


def wait_for_panels(terminal: Terminal, count: int) -> None:
    terminal.wait_until(lambda: panels(terminal) >= count, f"{count} turns")


@pytest.mark.parametrize("moments", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_loses_no_finished_turn(cli: Cli, tmp_path: Path, moments: int) -> None:
    """Every turn whose panel was complete on the screen is in the file, word for word."""
    words = [f"word{number} " for number in range(40)]
    path = write_puppet(tmp_path / "words.gguf", words).path
    messages = [f"message {number}" for number in range(30)]
    chance = random.Random(moments)
    for moment in range(moments):
        name = f"k{moment}"
        with cli.terminal("chat", path, *GREEDY, "--session", name) as terminal:
            Talk(terminal)
            terminal.send("\r".join(messages) + "\r")
            wanted = chance.randrange(len(messages) // 2)
            wait_for_panels(terminal, wanted)
            time.sleep(chance.uniform(0, 0.03))  # anywhere in the turn after it
            shown = panels(terminal)
            terminal.kill()
        kept = store_of(cli).read(name)
        assert wanted <= shown <= len(kept.turns)
        expected = [(message, "".join(words)) for message in messages[: len(kept.turns)]]
        assert [(turn.user, turn.answer) for turn in kept.turns] == expected
