"""Public bug reports on the context window. The comment above a test names the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet
from tests.support.talk import Talk, last_session

GREEDY = ("--temp", "0")
SYSTEM = "SYS-7734"
ROLES = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|go|>"
"""Echoes every role and text, and stays the same when the conversation goes on."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a window of 512 tokens that never ends by itself."""
    return write_puppet(tmp_path / "loop.gguf", ["tick ", "tock "], loop=True, n_ctx=512).path


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """A model that answers "fine" to everything, in a window of 32,768 tokens; one token for each byte."""
    return write_puppet(tmp_path / "echo.gguf", ["fine"], template=ROLES, n_ctx=1 << 15).path


def message(number: int) -> str:
    return f"message {number:02} {'x' * 30} end"


def prompts_shown(text: str) -> list[str]:
    """The prompts that -v showed."""
    return re.findall(r"llmrun\.prompt: (.*?<\|go\|>)", text, flags=re.DOTALL)


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


# abetlen/llama-cpp-python#416, lmstudio-ai/lmstudio-bug-tracker#2339
class TestPromptLongerThanTheWindow:
    def test_refused_with_both_numbers_and_the_flag(self, cli: Cli) -> None:
        prompt = b"word " * 2000
        words = ("run", smollm2_path(), "-c", "512")
        ended = cli.here(*words, stdin=prompt)
        assert (ended.status, ended.out) == (6, b"")
        assert ended.err.count("\n") == 2
        needed, available, raised = numbers(ended.err)
        assert needed > 2000
        assert available == 512
        assert f"-c {raised}" in ended.err
        document = cli.here(*words, "--json", stdin=prompt).document
        assert (document["code"], document["exit_code"]) == ("prompt_too_long", 6)
        assert numbers(document["message"]) == [needed, 512]

    def test_the_suggested_window_holds_it(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "long.gguf", ["ok"], n_ctx=2048).path
        ended = cli.here("run", path, "-c", "256", stdin=b"x" * 600)
        suggested = numbers(ended.err)[-1]
        fits = cli.here("run", path, "-c", str(suggested), *GREEDY, "--json", stdin=b"x" * 600)
        assert fits.document["text"] == "ok"

    def test_no_window_beyond_the_trained_one_is_suggested(self, cli: Cli, model: Path) -> None:
        ended = cli.here("run", model, "-c", "256", stdin=b"x" * 600)
        assert ended.status == 6
        assert "-c" not in ended.err
        assert numbers(ended.err)[1:] == [256, 512]

    def test_the_last_cell_counts(self, cli: Cli, model: Path) -> None:
        one = cli.here("run", model, "x", "-n", "1", "--json").document["usage"]["prompt_tokens"]
        full, over = (b"x" * (256 - one + 1 + more) for more in (0, 1))
        document = cli.here("run", model, "-c", "256", "--json", stdin=full).document
        assert (document["usage"]["prompt_tokens"], document["finish_reason"]) == (256, "context")
        assert document["usage"]["completion_tokens"] == 1
        assert cli.here("run", model, "-c", "256", stdin=over).status == 6


# abetlen/llama-cpp-python#657 and #1421, ggml-org/llama.cpp#23453
class TestWindowAskedForAndWindowMade:
    @pytest.mark.parametrize("asked", ["1", "64", "256", "300"])
    def test_one_number_counts_everywhere(self, cli: Cli, model: Path, asked: str) -> None:
        ended = cli.here("run", model, "x", *GREEDY, "-c", asked, "--json")
        made = ended.document["settings"]["n_ctx"]
        assert made >= int(asked)
        assert made == ended.document["kv"]["capacity_tokens"] == ended.document["kv"]["tokens"]
        assert ended.document["finish_reason"] == "context"

    def test_rounding_is_said(self, cli: Cli, model: Path) -> None:
        ended = cli.here("run", model, "x", *GREEDY, "-c", "64", "-n", "2", "-v")
        assert "256" in ended.err

    def test_a_limit_below_the_window_holds(self, cli: Cli, model: Path) -> None:
        document = cli.here("run", model, "x", *GREEDY, "-c", "64", "-n", "200", "--json").document
        assert (document["usage"]["completion_tokens"], document["finish_reason"]) == (200, "length")

    def test_beyond_the_trained_length_is_a_warning(self, cli: Cli, model: Path) -> None:
        ended = cli.here("run", model, "x", *GREEDY, "-c", "1024", "-n", "2")
        assert ended.status == 0
        assert ended.err.startswith("warning:")
        assert "512" in ended.err

    @pytest.mark.parametrize("asked", ["-1", "-8192", "many", "1.5", "99999999999"])
    def test_no_window_at_all_is_refused(self, cli: Cli, model: Path, asked: str) -> None:
        ended = cli.here("run", model, "x", "-c", asked)
        assert (ended.status, ended.out) == (2, b"")
        assert asked in ended.err

    @pytest.mark.parametrize("asked", ["0", "max"])
    def test_the_largest_is_the_trained_length(self, cli: Cli, model: Path, asked: str) -> None:
        document = cli.here("run", model, "x", *GREEDY, "-c", asked, "-n", "1", "--json").document
        assert document["settings"]["n_ctx"] == 512


# ggml-org/llama.cpp#8817, oobabooga/textgen PR#6835
class TestDefaultWindow:
    def test_bounded_whatever_the_model_was_trained_for(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "million.gguf", ["ok"], n_ctx=1 << 20).path
        document = cli.here("run", path, "x", *GREEDY, "--json").document
        assert document["settings"]["n_ctx"] == document["kv"]["capacity_tokens"] == 8192

    def test_a_real_model_of_a_long_window(self, cli: Cli) -> None:
        document = cli.here("run", gemma_path(), "x", *GREEDY, "-n", "1", "--json").document
        assert document["kv"]["capacity_tokens"] == 8192


# containers/ramalama#750, JamePeng/llama-cpp-python#70
class TestWindowFullInTheMiddleOfAnAnswer:
    def test_run_ends_well_with_a_note(self, cli: Cli, model: Path) -> None:
        ended = cli.here("run", model, "x", *GREEDY, "-c", "256")
        assert ended.status == 0
        assert ended.text.startswith("tick tock tick")
        assert ended.err.count("\n") == 1
        assert "256" in ended.err

    def test_chat_takes_the_next_turn(self, cli: Cli, model: Path) -> None:
        with cli.terminal("chat", model, *GREEDY, "-c", "256") as terminal:
            terminal.wait_for_prompt()
            terminal.send("one\r")
            terminal.wait_for("full")
            terminal.wait_for_prompt()
            terminal.send("two\r")
            terminal.wait_for("first 2 messages are left out")
            terminal.wait_for_prompt()
            terminal.send("\x04")
            assert terminal.ended() == 0
            assert "error" not in terminal.text


# ollama/ollama#14259 and #3839
class TestMessagesLeftOut:
    def test_the_turn_on_which_it_happens_says_how_many(self, cli: Cli, echo: Path) -> None:
        told = []
        with cli.terminal("chat", echo, *GREEDY, "-c", "512", columns=120) as terminal:
            talk = Talk(terminal)
            for number in range(16):
                shown = talk.says(message(number))
                told.append(re.findall(r"first (\d+) messages are left out", shown))
            talk.leaves()
        counts = [2 * turn.left_out for turn in last_session(cli).turns]
        logged = [record["dropped_messages"] for record in cli.request_log]
        assert logged == counts
        assert counts[0] == 0 < counts[-1]
        for before, count, notes in zip([0, *counts], counts, told, strict=False):
            assert notes == ([str(count)] if count != before else [])

    def test_a_piped_message_says_it_too(self, cli: Cli, echo: Path) -> None:
        words = ("chat", echo, *GREEDY, "-c", "256", "--session", "s")
        first = cli.here(*words, stdin=b"a" * 120)
        second = cli.here(*words, stdin=b"b" * 120)
        assert (first.text, first.err) == ("fine", "")
        assert second.text == "fine"
        assert second.err.startswith("warning:")
        assert "first 2 messages are left out" in second.err
        assert [record["dropped_messages"] for record in cli.request_log] == [0, 2]

    def test_a_strict_switch_refuses_instead(self, cli: Cli, echo: Path) -> None:
        words = ("chat", echo, *GREEDY, "-c", "256", "--session", "s", "--overflow", "stop")
        assert cli.here(*words, stdin=b"a" * 120).status == 0
        refused = cli.here(*words, stdin=b"b" * 120)
        assert (refused.status, refused.out) == (6, b"")
        needed, available, raised = numbers(refused.err.replace("--overflow drop", ""))
        assert needed > available == 256
        assert cli.here(*words[:-1], "drop", stdin=b"b" * 120).status == 0
        assert [turn.left_out for turn in last_session(cli).turns] == [0, 1]
        # the messages that were left out before are not forgotten in silence
        assert cli.here(*words, stdin=b"c").status == 6
        assert cli.here(*words, "-c", str(raised), stdin=b"c").status == 0
        assert last_session(cli).turns[-1].left_out == 0

    def test_a_chat_that_refuses_goes_on(self, cli: Cli, echo: Path) -> None:
        with cli.terminal("chat", echo, *GREEDY, "-c", "256", "--overflow", "stop", columns=120) as terminal:
            talk = Talk(terminal)
            talk.says("a" * 120)
            assert "--overflow drop" in talk.says("b" * 120)
            talk.says("/set overflow drop")
            assert "first 2 messages are left out" in talk.says("b" * 120)
            talk.leaves()
        assert [turn.user[0] for turn in last_session(cli).turns] == ["a", "b"]


# ollama/ollama#8531 and #6253, oobabooga/textgen#2376
class TestWhatOverflowNeverTakes:
    def test_the_system_text_leads_every_prompt_and_no_message_is_cut(self, cli: Cli, echo: Path) -> None:
        words = ("chat", echo, *GREEDY, "-c", "512", "-sys", SYSTEM, "--session", "s", "-v")
        for number in range(30):
            ended = cli.here(*words, stdin=message(number).encode())
            (prompt,) = prompts_shown(ended.err)
            left_out = last_session(cli).turns[-1].left_out
            said = "".join(
                f"<|user|>{message(earlier)}\n<|assistant|>fine\n" for earlier in range(left_out, number)
            )
            assert prompt == f"<|system|>{SYSTEM}\n{said}<|user|>{message(number)}\n<|go|>"
            assert cli.request_log[-1]["usage"]["prompt_tokens"] <= 512
        assert 20 < left_out < 30

    def test_the_same_on_a_terminal(self, cli: Cli, echo: Path) -> None:
        with cli.terminal("chat", echo, *GREEDY, "-c", "256", "-sys", SYSTEM, "-v", columns=200) as terminal:
            talk = Talk(terminal)
            for number in range(8):
                (prompt,) = prompts_shown(talk.says(message(number)))
                assert prompt.startswith(f"<|system|>{SYSTEM}\n<|user|>message ")
                assert prompt.endswith(f"<|user|>{message(number)}\n<|go|>")
            talk.leaves()
        assert last_session(cli).turns[-1].left_out > 0

    @pytest.mark.parametrize("policy", ["drop", "summarize", "stop"])
    def test_a_system_text_that_alone_is_too_long_is_refused_with_numbers(
        self, cli: Cli, echo: Path, policy: str
    ) -> None:
        words = ("chat", echo, *GREEDY, "-c", "256", "-sys", "s" * 400, "--overflow", policy)
        ended = cli.here(*words, stdin=b"hello")
        assert (ended.status, ended.out) == (6, b"")
        needed, available, raised = numbers(ended.err)
        assert needed > 400
        assert available == 256
        assert raised > needed
        assert "--overflow" not in ended.err


class TestSummary:
    WORDS = (*GREEDY, "-c", "768", "-sys", SYSTEM, "--overflow", "summarize")

    def test_it_stands_for_what_was_left_out_and_goes_with_undo(self, cli: Cli, echo: Path) -> None:
        with cli.terminal("chat", echo, *self.WORDS, "-v", columns=150) as terminal:
            talk = Talk(terminal)
            talk.says("a" * 200)
            talk.says("b" * 200)
            shown = talk.says("c" * 300)
            asked, prompt = prompts_shown(shown)
            assert asked.startswith(f"<|system|>{SYSTEM}\n<|user|>{'a' * 200}\n<|assistant|>fine\n<|user|>")
            assert "in place of its first" in shown
            assert prompt.startswith(f"<|system|>{SYSTEM}\n\n")
            assert prompt.split("<|user|>")[0].endswith("\nfine\n")
            assert "a" * 200 not in prompt
            (again,) = prompts_shown(talk.says("/regen"))  # no second summary
            assert again == prompt
            talk.says("/undo")
            (short,) = prompts_shown(talk.says("d"))
            assert "a" * 200 in short
            talk.leaves()
        assert [(turn.left_out, turn.summary) for turn in last_session(cli).turns] == [(0, "")] * 3

    def test_a_resumed_session_goes_on_with_it(self, cli: Cli, echo: Path) -> None:
        words = ("chat", *self.WORDS, "-v")
        for letter, length in (("a", 200), ("b", 200), ("c", 300)):
            ended = cli.here(*words, echo, "--session", "s", stdin=letter.encode() * length)
        before = prompts_shown(ended.err)[-1]
        turn = last_session(cli).turns[-1]
        assert (turn.left_out, turn.summary) == (2, "fine")
        resumed = cli.here(*words, "--continue", stdin=b"d")
        assert prompts_shown(resumed.err) == [
            before.replace("<|go|>", "<|assistant|>fine\n<|user|>d\n<|go|>")
        ]
        assert "warning" not in resumed.err
        record = cli.request_log[-1]
        assert record["dropped_messages"] == 4
        # with more room all of it comes back
        (whole,) = prompts_shown(cli.here(*words, "--continue", "-c", "2048", stdin=b"e").err)
        assert whole.startswith(f"<|system|>{SYSTEM}\n<|user|>{'a' * 200}\n")
        assert cli.request_log[-1]["dropped_messages"] == 0

    @pytest.mark.slow
    def test_a_real_model_writes_one(self, cli: Cli) -> None:
        words = ("chat", smollm2_path(), *GREEDY, "-c", "256", "-n", "60", "--overflow", "summarize")
        with cli.terminal(*words, "--panel", "off", columns=200) as terminal:
            talk = Talk(terminal)
            talk.says("My name is Ada and my cat is called Quux. Please remember that.")
            for topic in ("the sea", "rain", "a train", "the moon"):
                talk.says(f"Tell me two sentences about {topic}.")
            talk.leaves()
        turns = last_session(cli).turns
        summary = turns[-1].summary
        assert turns[-1].left_out > 0
        assert len(summary.split()) > 5
        assert summary.split()[0] in terminal.text
