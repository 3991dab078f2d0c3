"""`llmrun run` besides its JSON: where text and figures go, and what the flags do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli, strict_json
from tests.support.models import smollm2_path
from tests.support.puppet import write_puppet

GREEDY = ("--temp", "0")
SAID = "a short answer"


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """Says "ok"; its prompt is the message and two control tokens."""
    return write_puppet(tmp_path / "echo.gguf", ["ok"], template="{{ messages[0].content }}<|go|>").path


def message_length(cli: Cli, model: Path, *words: str | Path, stdin: bytes = b"") -> int:
    """Bytes of the message that was made of `words`, which hold no blanks."""
    document = cli.here("run", model, *words, *GREEDY, "--json", stdin=stdin).document
    return int(document["usage"]["prompt_tokens"]) - 2


class TestPrompt:
    def test_files_by_flag_and_by_at_sign(self, cli: Cli, echo: Path) -> None:
        (cli.folder / "a.txt").write_text("AAAA\n")
        (cli.folder / "b.txt").write_text("BBBBBB")
        assert message_length(cli, echo, "@a.txt") == len("AAAA\n")
        assert message_length(cli, echo, "-p", "@b.txt") == len("BBBBBB")
        assert message_length(cli, echo, "@@a.txt") == len("@a.txt")
        alone = message_length(cli, echo, "-f", "a.txt")
        both = message_length(cli, echo, "-f", "a.txt", "-f", "b.txt", "q")
        assert alone > len("AAAA") + 2 * len("a.txt")
        assert both == alone + (alone + 2) + len("\n\n" * 2) + len("q")

    def test_a_system_text_from_a_file(self, cli: Cli, model: Path) -> None:
        (cli.folder / "s.txt").write_text("SYSTEM")
        given = cli.here("run", model, "x", *GREEDY, "-sys", "SYSTEM", "--json").document
        read = cli.here("run", model, "x", *GREEDY, "--system", "@s.txt", "--json").document
        none = cli.here("run", model, "x", *GREEDY, "--json").document
        assert given["settings"]["system"] == read["settings"]["system"] == "SYSTEM"
        counts = [d["usage"]["prompt_tokens"] for d in (given, read, none)]
        assert counts[0] == counts[1] > counts[2]

    def test_a_file_that_is_no_text_is_named(self, cli: Cli, echo: Path) -> None:
        (cli.folder / "bin").write_bytes(b"\x80")
        ended = cli.here("run", echo, "-f", "bin")
        assert ended.status == 2
        assert "bin" in ended.err

    def test_after_two_dashes_everything_is_prompt(self, cli: Cli, echo: Path) -> None:
        ended = cli.here("run", echo, *GREEDY, "--", "--json")
        assert (ended.status, ended.text) == (0, "ok")


class TestDisplay:
    def test_shown_at_once_is_the_same_text(self, cli: Cli, model: Path) -> None:
        streamed = cli.here("run", model, "x", *GREEDY)
        at_once = cli.here("run", model, "x", *GREEDY, "--no-stream")
        assert streamed == at_once
        assert streamed.text == SAID

    def test_figures_on_demand(self, cli: Cli, model: Path) -> None:
        assert cli.here("run", model, "x", *GREEDY).err == ""
        shown = cli.here("run", model, "x", *GREEDY, "--stats")
        assert shown.text == SAID
        for label in ("generation", "prompt eval", "TTFT", "KV cache", "context", "prefix cache"):
            assert label in shown.err

    def test_figures_by_themselves_only_where_both_are_terminals(self, cli: Cli, model: Path) -> None:
        with cli.terminal("run", model, "x", *GREEDY) as terminal:
            assert terminal.ended() == 0
            assert "tok/s" in terminal.text
        for flag in ("--no-stats", "-q"):
            with cli.terminal("run", model, "x", *GREEDY, flag) as terminal:
                assert terminal.ended() == 0
                assert [line for line in terminal.display if line] == [SAID]
        with (
            (cli.folder / "out").open("w+b") as out,
            cli.terminal("run", model, "x", *GREEDY, out=out) as terminal,
        ):
            assert terminal.ended() == 0
            assert not any(terminal.display)
            out.seek(0)
            assert out.read() == SAID.encode()

    def test_notes_only_where_somebody_reads_them(self, cli: Cli, model: Path) -> None:
        assert cli.here("run", model, "x", *GREEDY, "-c", "300").err == ""
        assert "512" in cli.here("run", model, "x", *GREEDY, "-c", "300", "-v").err
        with cli.terminal("run", model, "x", *GREEDY, "-c", "300", "--no-stats") as terminal:
            assert terminal.ended() == 0
            assert "512" in terminal.text


class TestSampling:
    def test_a_seed_repeats_an_answer(self, cli: Cli) -> None:
        words = ("run", smollm2_path(), "Tell me a story", "-c", "256", "-n", "12", "--temp", "1.5", "--json")
        first = cli.here(*words, "-s", "7").document
        again = cli.here(*words, "--seed", "7").document
        other = cli.here(*words).document
        assert first["settings"]["seed"] == 7
        assert first["text"] == again["text"] != other["text"]
        repeated = cli.here(*words, "-s", str(other["settings"]["seed"])).document
        assert repeated["text"] == other["text"]

    def test_a_bias_changes_what_is_said(self, cli: Cli, tmp_path: Path) -> None:
        puppet = write_puppet(tmp_path / "bias.gguf", ["one", "two", "three"])
        third = puppet.tokens[2]
        ended = cli.here("run", puppet.path, "x", *GREEDY, "--logit-bias", f"{third}+50", "-n", "2", "--json")
        assert ended.document["text"] == "threethree"

    def test_settings_of_the_file_hold_unless_overridden(self, cli: Cli, tmp_path: Path) -> None:
        keys = [("general.sampling.temp", 0.25), ("general.sampling.top_k", 7)]
        path = write_puppet(tmp_path / "own.gguf", ["ok"], extra=keys).path
        settings = cli.here("run", path, "x", "--top-k", "9", "--json").document["settings"]
        assert settings["temperature"] == pytest.approx(0.25)
        assert settings["top_k"] == 9


class TestSources:
    def test_environment_profile_file_and_flag_in_order(self, cli: Cli, model: Path) -> None:
        cli.config_dir.mkdir()
        (cli.config_dir / "config.yaml").write_text("max_tokens: 1\ntop_k: 1\ntop_p: 0.5\nmin_p: 0.1\n")
        (cli.config_dir / "profiles").mkdir()
        (cli.config_dir / "profiles" / "mine.yaml").write_text("top_k: 2\ntop_p: 0.6\nmin_p: 0.2\n")
        env = {"LLMRUN_TOP_P": "0.7", "LLMRUN_MIN_P": "0.3"}
        words = ("run", model, "x", "--profile", "mine", "--min-p", "0.4", "--json")
        settings = cli.here(*words, env=env).document["settings"]
        assert settings["max_tokens"] == 1
        assert [settings[name] for name in ("top_k", "top_p", "min_p")] == [2, 0.7, 0.4]

    @pytest.mark.parametrize("profile", ["default", "low-memory", "long-context", "cpu"])
    def test_every_shipped_profile_runs(self, cli: Cli, tmp_path: Path, profile: str) -> None:
        model = write_puppet(tmp_path / "long.gguf", [SAID], n_ctx=8192).path
        ended = cli.here("run", model, "x", *GREEDY, "--profile", profile)
        assert (ended.status, ended.text, ended.err) == (0, SAID, "")

    def test_a_configured_model_answers_a_chat(self, cli: Cli, model: Path) -> None:
        ended = cli.here("chat", *GREEDY, "-v", stdin=b"x", env={"LLMRUN_MODEL": str(model)})
        assert ended.text == SAID
        assert "LLMRUN_MODEL" in ended.err


class TestRequestLog:
    def test_one_line_without_what_was_said(self, cli: Cli, model: Path) -> None:
        cli.here("run", model, "SECRET", "-sys", "SECRET", "--stop", "SECRET", *GREEDY)
        text = (cli.data_dir / "requests.jsonl").read_text()
        assert "SECRET" not in text
        assert SAID not in text
        (line,) = text.splitlines()
        assert strict_json(line)["timings"]["predicted_n"] == 4

    def test_a_log_that_cannot_be_written_is_a_warning(self, cli: Cli, model: Path) -> None:
        cli.data_dir.write_text("a file in the way")
        ended = cli.here("run", model, "x", *GREEDY)
        assert (ended.status, ended.text) == (0, SAID)
        assert ended.err.startswith("warning: ")
        assert ended.err.count("\n") == 1
