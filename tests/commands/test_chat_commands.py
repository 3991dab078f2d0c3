"""The slash commands of `llmrun chat` on a terminal."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.commands.chat_commands import ALIASES, COMMANDS

from tests.support.cli import Cli
from tests.support.puppet import write_puppet
from tests.support.talk import Talk, said, session_files, store_of

GREEDY = ("--temp", "0")
ANSWER = "a short answer"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "other.gguf", ["something ", "else"]).path


@pytest.fixture
def talk(cli: Cli, model: Path) -> Iterator[Talk]:
    with cli.terminal("chat", model, *GREEDY, columns=100) as terminal:
        yield Talk(terminal)


def test_the_program_answers_on_stderr_and_the_model_on_stdout(cli: Cli, model: Path) -> None:
    """Settings and figures, asked for while stdout is a file."""
    (cli.folder / "sys.txt").write_text("From a file.\n")
    with (cli.folder / "out").open("w+b") as out:
        with cli.terminal("chat", model, *GREEDY, out=out, columns=120, lines=60) as terminal:
            talk = Talk(terminal)
            shown = talk.says("/help")
            assert all(f"/{name}" in shown for name in COMMANDS)
            talk.says("hello")
            assert "none" in talk.says("/system")
            assert "Be brief." in talk.says("/system Be brief.")
            assert "From a file." in talk.says("/system @sys.txt")
            assert "error:" in talk.says("/system @missing.txt")
            assert "From a file." in talk.says("/system")
            assert "none" in talk.says("/system none")

            assert "error:" not in talk.says("/set top_k 7")
            assert "error:" not in talk.says("/set panel line")
            assert "/model" in talk.says("/set n_ctx 512")
            assert "top_k" in talk.says("/set topk 7").partition("error:")[2]
            assert "error:" in talk.says("/set top_k many")
            assert "top_k = 7" in talk.says("/set top_k")
            assert "error:" in talk.says("/set")
            assert "error:" in talk.says("/set nonsense")
            assert "temperature = 0.5" in talk.says("/set temp 0.5")
            assert "temperature = 0.6" in talk.says("/set --temp=0.6")
            assert "temperature = 0" in talk.says("/set temperature default")
            assert '["END"]' in talk.says("/set stop END")
            assert "stop = none" in talk.says("/set stop default")
            talk.says("/system Be brief.")
            settings = {line.split()[0]: line for line in talk.says("/show").splitlines() if line.split()}
            assert "7  (/set)" in settings["top_k"]
            assert "line  (/set)" in settings["panel"]
            assert "512  (/set)" in settings["n_ctx"]
            assert model.name in settings["model"]
            assert "0  (flag --temp)" in settings["temperature"]
            assert "Be brief." in settings["system"]

            stats = talk.says("/stats")
            assert all(word in stats for word in ("prefill", "decode", "reused", "tok/s"))
            context = talk.says("/context")
            assert "of 2,048 tokens" in context
            assert "nothing stored" in context
            assert str(store_of(cli).last()) in context
            talk.leaves()
        out.seek(0)
        assert out.read().decode() == ANSWER


def test_the_reference_has_every_command() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "chat.md").read_text(
        encoding="utf-8"
    )
    documented = set(re.findall(r"`/([a-z?]+)", page))
    assert documented == {*COMMANDS, *ALIASES}


def test_the_conversation_can_be_changed(cli: Cli, talk: Talk) -> None:
    for command in ("/undo", "/edit", "/regen", "/copy"):
        assert "error:" in talk.says(command)
    talk.says("one")
    talk.says("two")
    assert "two" in talk.says("/undo")
    assert said(cli) == [("one", ANSWER)]
    assert ANSWER in talk.says("/regen")
    assert said(cli) == [("one", ANSWER)]
    assert len(cli.request_log) == 3

    talk.says("/edit")
    assert said(cli) == []
    assert talk.terminal.line_at_cursor == ">>> one"
    talk.says(" more")
    assert said(cli) == [("one more", ANSWER)]

    talk.says("/copy")
    assert b"\x1b]52;c;" + b64encode(ANSWER.encode()) + b"\x07" in talk.terminal.raw
    talk.says("/clear")
    assert said(cli) == []
    talk.says("new")
    assert cli.request_log[-1]["usage"]["prompt_tokens"] == cli.request_log[0]["usage"]["prompt_tokens"]
    talk.enters("/exit")
    assert talk.terminal.ended() == 0


def test_files_go_with_the_next_message_only(cli: Cli, talk: Talk) -> None:
    (cli.folder / "my notes.txt").write_text("milk and bread\n")
    assert "error:" in talk.says("/read")
    assert "error:" in talk.says("/read missing.txt")
    talk.says("/read my notes.txt")
    talk.says("what is it?")
    talk.says("and now?")
    first, second = (user for user, _ in said(cli))
    assert "my notes.txt" in first
    assert "milk and bread" in first
    assert first.endswith("what is it?")
    assert second == "and now?"
    talk.leaves()


def test_a_failed_message_takes_its_files_with_it(cli: Cli, talk: Talk) -> None:
    (cli.folder / "long.txt").write_text("x" * 3000)
    talk.says("/read long.txt")
    assert "error:" in talk.says("what is it?")
    assert store_of(cli).last() is None
    talk.says("hello")
    assert said(cli) == [("hello", ANSWER)]
    talk.leaves()


def test_sessions_are_saved_and_loaded(cli: Cli, talk: Talk) -> None:
    talk.says("one")
    assert "error:" in talk.says("/save")
    assert "kept" in talk.says("/save kept")
    assert "error:" in talk.says("/save kept")
    assert "error:" in talk.says("/save ../kept")
    talk.says("two")
    assert len(store_of(cli).read("kept").turns) == 1

    assert "error:" in talk.says("/load")
    assert "error:" in talk.says("/load nosuch")
    (cli.data_dir / "sessions" / "broken.jsonl").write_text("{}\n")
    assert "error:" in talk.says("/load broken")
    talk.says("three")
    assert [user for user, _ in said(cli)] == ["one", "two", "three"]

    assert "kept" in talk.says("/load kept")
    talk.says("four")
    talk.says("/load KEPT")  # the one that is open
    talk.says("five")
    assert [turn.user for turn in store_of(cli).read("kept").turns] == ["one", "four", "five"]
    assert len(session_files(cli)) == 3
    talk.leaves()


def test_another_model_goes_on_with_the_conversation(cli: Cli, talk: Talk, model: Path, other: Path) -> None:
    talk.says("one")
    assert "error:" not in talk.says(f"/model {other}")
    assert "something else" in talk.says("two")
    assert "error:" in talk.says("/model ./missing.gguf")
    assert "something else" in talk.says("three")
    assert "error:" not in talk.says("/model")
    assert "something else" in talk.says("four")
    talk.leaves()
    turns = store_of(cli).read(store_of(cli).last() or "").turns
    assert [turn.model for turn in turns] == [str(model), *[str(other)] * 3]


def test_settings_of_loading_hold_once_the_model_is_loaded_again(cli: Cli, talk: Talk) -> None:
    assert "/model" in talk.says("/set n_ctx 256")
    assert "of 2,048 tokens" in talk.says("/context")
    assert "error:" not in talk.says("/model")
    assert "of 256 tokens" in talk.says("/context")
    assert ANSWER in talk.says("still there?")
    talk.leaves()


def test_slashes_that_are_no_commands(cli: Cli, talk: Talk) -> None:
    assert "/undo" in talk.says("/undoo").partition("error:")[2]
    assert "error:" in talk.says("/xyzzy")
    for line in ("//etc is a folder", " /usr as well", "/etc/hosts?"):
        talk.says(line)
    assert [user for user, _ in said(cli)][:2] == ["/etc is a folder", "/usr as well"]
    assert "/undo" in talk.says("/?")
    talk.enters("/quit")
    assert talk.terminal.ended() == 0
    assert talk.terminal.modes == talk.terminal.modes_before
