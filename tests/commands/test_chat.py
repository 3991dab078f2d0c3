"""`llmrun chat` as a whole: on a terminal, and with a message piped in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.cli import Cli
from tests.support.models import smollm2_path
from tests.support.talk import Talk

GREEDY = ("--temp", "0")
OVERHEAD_TOKENS = 30
"""What a template may add to a message."""


class TestPiped:
    def test_all_of_it_is_one_message(self, cli: Cli, model: Path) -> None:
        ended = cli("chat", model, *GREEDY, stdin=b"first line\nsecond line\n")
        assert (ended.status, ended.text, ended.err) == (0, "a short answer", "")
        assert len(cli.request_log) == 1

    def test_nothing_is_a_usage_error(self, cli: Cli, model: Path) -> None:
        assert cli("chat", model).status == 2
        assert cli("chat", model, stdin="closed").status == 2

    def test_the_model_that_comes_with_it_answers_by_default(self, cli: Cli) -> None:
        ended = cli.here("chat", *GREEDY, "-n", "3", "-c", "256", "-v", stdin=b"Hi")
        assert ended.status == 0
        assert ended.text
        assert "smollm2-135m" in ended.err


class TestOnTerminal:
    def test_turns_reuse_what_was_said(self, cli: Cli) -> None:
        messages = ["Hello there", "What is the capital of France?", "And of Spain?"]
        with cli.terminal("chat", smollm2_path(), *GREEDY, "-n", "12", "-c", "1024", columns=100) as terminal:
            talk = Talk(terminal)
            for message in messages:
                talk.says(message)
            talk.leaves()
            for label in ("generation", "prompt eval", "TTFT", "KV cache", "prefix cache"):
                assert label in terminal.text
            assert "on CPU" in terminal.text
        log = cli.request_log
        assert [record["timings"]["cache_n"] > 0 for record in log] == [False, True, True]
        for record, message in zip(log[1:], messages[1:], strict=True):
            assert record["timings"]["prompt_n"] <= len(message.split()) * 2 + OVERHEAD_TOKENS
        for record, following in pairwise(log):
            assert following["timings"]["cache_n"] >= record["kv"]["tokens"] - 1

    def test_the_first_line_says_which_model(self, cli: Cli) -> None:
        with cli.terminal("chat", *GREEDY, "-n", "1", "-c", "256") as terminal:
            terminal.wait_for_prompt()
            assert "smollm2-135m" in terminal.text
            assert "/help" in terminal.text
            terminal.send("\x04")
            assert terminal.ended() == 0

    def test_an_empty_line_asks_nothing(self, cli: Cli, model: Path) -> None:
        with cli.terminal("chat", model, *GREEDY) as terminal:
            talk = Talk(terminal)
            talk.says("  ")
            talk.leaves()
        assert cli.request_log == []

    def test_only_answers_go_to_a_file(self, cli: Cli, model: Path) -> None:
        with (cli.folder / "out").open("w+b") as out:
            with cli.terminal("chat", model, *GREEDY, "--stats", out=out) as terminal:
                talk = Talk(terminal)
                assert "prefix cache" in talk.says("x")
                talk.leaves()
            out.seek(0)
            assert out.read() == b"a short answer"

    def test_a_model_that_cannot_be_opened_ends_it(self, cli: Cli) -> None:
        with cli.terminal("chat", "./none.gguf") as terminal:
            assert terminal.ended() == 3
            assert terminal.modes == terminal.modes_before
            assert "error:" in terminal.text

    def test_a_dumb_terminal_will_do(self, cli: Cli, model: Path) -> None:
        with cli.terminal("chat", model, *GREEDY, env={"TERM": "dumb"}) as terminal:
            terminal.wait_for(">>>")
            terminal.send("x\r")
            place = terminal.wait_for("a short answer")
            place = terminal.wait_for("prefix cache", after=place)
            terminal.wait_for(">>>", after=place)
            terminal.send("\x04")
            assert terminal.ended() == 0
