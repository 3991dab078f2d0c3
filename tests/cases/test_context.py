"""Public bug reports on the context window. The comment above a test names the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet

GREEDY = ("--temp", "0")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a window of 512 tokens that never ends by itself."""
    return write_puppet(tmp_path / "loop.gguf", ["tick ", "tock "], loop=True, n_ctx=512).path


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
