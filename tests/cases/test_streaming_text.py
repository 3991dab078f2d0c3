"""Public bug reports on streamed text, each shown on a model that says exactly what the report needs.

The comment above a test names the report. Behind a pipe, on a terminal and in JSON the text is the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.models import smollm2_path
from tests.support.puppet import Control, Item, UserDefined, byte_items, write_puppet

GREEDY = ("--temp", "0")
LLAMA = "🦙"
MULTIBYTE: list[Item] = ["Hi", " there ", *byte_items(LLAMA), " ok", " 日", *byte_items("語"), "!"]
SHARED = ["alpha ", "beta ", "gam", "ma de", "lta ", "END"]
SPACES = [" lead", "  two", "\n\n\n", "\tx "]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "puppet.gguf"


# abetlen/llama-cpp-python#372, ggml-org/llama.cpp#4036
class TestCharactersOfSeveralTokens:
    def test_stream_terminal_and_json_agree(self, cli: Cli, model: Path) -> None:
        text = write_puppet(model, MULTIBYTE).shown.decode()
        piped = cli("run", model, "x", *GREEDY)
        assert (piped.status, piped.text, piped.err) == (0, text, "")
        assert cli.here("run", model, "x", *GREEDY, "--json").document["text"] == text
        pieces = [
            r["text"]
            for r in cli.here("run", model, "x", *GREEDY, "--stream", "json").records
            if r["event"] == "token"
        ]
        assert "".join(pieces) == text
        assert LLAMA in pieces  # whole, never in parts
        with cli.terminal("run", model, "x", *GREEDY, "-q") as terminal:
            assert terminal.ended() == 0
            assert terminal.text == text + "\n"

    @pytest.mark.parametrize("limit", [3, 4, 5, 6])
    def test_a_limit_inside_a_character_leaves_it_out_whole(self, cli: Cli, model: Path, limit: int) -> None:
        write_puppet(model, MULTIBYTE)
        document = cli.here("run", model, "x", *GREEDY, "-n", str(limit), "--json").document
        assert document["text"] == "Hi there " + (LLAMA if limit == 6 else "")
        assert document["finish_reason"] == "length"
        assert document["usage"]["completion_tokens"] == limit


# abetlen/llama-cpp-python#1, vllm-project/vllm#3574, mzau/mlx-knife#68
class TestStopStringsAcrossTokens:
    @pytest.mark.parametrize(
        ("stops", "text"),
        [
            (["gamma"], "alpha beta "),
            (["gamma delta"], "alpha beta "),
            (["gammaX"], "".join(SHARED)),
            (["beta", "gamma"], "alpha "),
            (["gamma", "beta"], "alpha "),
            (["END"], "alpha beta gamma delta "),
        ],
    )
    def test_the_earliest_match_ends_the_text(
        self, cli: Cli, model: Path, stops: list[str], text: str
    ) -> None:
        write_puppet(model, SHARED)
        flags = [word for stop in stops for word in ("--stop", stop)]
        assert cli.here("run", model, "x", *GREEDY, *flags).text == text
        document = cli.here("run", model, "x", *GREEDY, *flags, "--json").document
        assert (document["text"], document["finish_reason"]) == (text, "stop")
        assert document["settings"]["stop"] == stops


# ollama/ollama#3759, ggml-org/llama.cpp#6772, unslothai/unsloth#468
class TestEndOfTurn:
    def test_any_end_token_of_the_vocabulary_ends_the_turn(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["Fine.", Control("<|eot_id|>"), "assistant", "\n\nMore"])
        document = cli.here("run", model, "x", *GREEDY, "--json").document
        assert (document["text"], document["finish_reason"]) == ("Fine.", "stop")
        assert document["usage"]["completion_tokens"] == 2

    def test_a_model_that_never_ends_stops_at_the_window(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["tick ", "tock "], loop=True, n_ctx=256)
        ended = cli.here("run", model, "x", *GREEDY, "--json")
        assert ended.status == 0
        assert ended.document["finish_reason"] == "context"
        assert ended.document["kv"]["tokens"] == ended.document["kv"]["capacity_tokens"] == 256
        assert ended.err.count("\n") == 1

    def test_the_end_can_be_ignored(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["one"])
        document = cli.here("run", model, "x", *GREEDY, "--ignore-eos", "-n", "5", "--json").document
        assert (document["usage"]["completion_tokens"], document["finish_reason"]) == (5, "length")


# abetlen/llama-cpp-python#1501 and #1561, LostRuins/koboldcpp#917
class TestOneBeginningOfSequence:
    TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}<|go|>"

    @pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE.removeprefix("{{ bos_token }}")])
    @pytest.mark.parametrize("add_bos", [True, False])
    def test_written_by_the_template_or_not(
        self, cli: Cli, model: Path, template: str, add_bos: bool
    ) -> None:
        write_puppet(model, ["ok"], template=template, add_bos=add_bos)
        ended = cli.here("run", model, "abc", *GREEDY, "--json")
        has_one = add_bos or template == self.TEMPLATE
        assert ended.document["usage"]["prompt_tokens"] == has_one + len("abc") + 1
        assert ended.err == ""

    def test_typed_by_the_user_of_a_raw_completion(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["ok"])
        ended = cli.here("run", model, "<s>abc<|go|>", "--raw", *GREEDY, "--json")
        assert ended.document["usage"]["prompt_tokens"] == 1 + len("abc") + 1
        assert (ended.document["text"], ended.err) == ("ok", "")

    def test_markers_a_user_types_stay_text(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["ok"], template=self.TEMPLATE)
        document = cli.here("run", model, "</s>", *GREEDY, "--json").document
        assert document["usage"]["prompt_tokens"] == 1 + len("</s>") + 1


# abetlen/llama-cpp-python#929 and #2362
class TestWhiteSpace:
    def test_raw_text_keeps_every_blank(self, cli: Cli, model: Path) -> None:
        text = write_puppet(model, SPACES, add_bos=False).shown.decode()
        assert cli.here("run", model, "<|go|>", "--raw", *GREEDY).text == text
        assert cli.here("run", model, "<|go|>", "--raw", *GREEDY, "--json").document["text"] == text

    def test_only_a_terminal_gets_a_final_line_feed(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["end"])
        assert cli.here("run", model, "x", *GREEDY).out == b"end"
        with cli.terminal("run", model, "x", *GREEDY, "-q") as terminal:
            assert terminal.ended() == 0
            assert terminal.text == "end\n"

    def test_a_real_model_continues_with_its_blank(self, cli: Cli) -> None:
        words = (
            "run",
            smollm2_path(),
            "The alphabet: A B C D E F G H I J K",
            "--raw",
            *GREEDY,
            "-n",
            "4",
            "-c",
            "256",
        )
        text = cli.here(*words).text
        assert text.startswith(" L M")
        assert cli.here(*words, "--json").document["text"] == text


# ggml-org/llama.cpp#11861, ollama/ollama#18221, simonw/llm#964
class TestReasoning:
    def check(self, cli: Cli, model: Path) -> None:
        assert cli.here("run", model, "x", *GREEDY).text == "Answer"
        document = cli.here("run", model, "x", *GREEDY, "--json").document
        assert (document["text"], document["reasoning"]) == ("Answer", "plan it")

    def test_opened_by_the_template(self, cli: Cli, model: Path) -> None:
        # the template's last token is the line feed, so the recital begins behind it
        script: list[Item] = [0x0A, "plan", " it", UserDefined("</think>"), "\n\n", "Answer"]
        write_puppet(model, script, template="{{ messages[0].content ~ '<|go|><think>\\n' }}")
        self.check(cli, model)

    def test_both_markers(self, cli: Cli, model: Path) -> None:
        script: list[Item] = [
            UserDefined("<think>"),
            "plan",
            " it",
            UserDefined("</think>"),
            "\n\n",
            "Answer",
        ]
        write_puppet(model, script)
        self.check(cli, model)

    def test_markers_split_over_tokens(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["<th", "ink>\n", "plan it", "\n</", "think", ">\n\nAns", "wer"])
        self.check(cli, model)

    def test_a_block_that_never_closes_is_no_answer(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["<think>", "on", " and"], loop=True)
        ended = cli.here("run", model, "x", *GREEDY, "-n", "40", "--json")
        document = ended.document
        assert (document["text"], document["finish_reason"]) == ("", "length")
        assert document["reasoning"].startswith("on and")
        assert document["timings"]["ttft_answer_ms"] is None
        assert ended.err.count("\n") == 1
        assert cli.here("run", model, "x", *GREEDY, "-n", "40").out == b""

    def test_shown_where_asked(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["<think>", "plan", "</think>", "Answer"])
        dim = cli.here("run", model, "x", *GREEDY, "--think", "dim")
        assert (dim.text, "plan" in dim.err) == ("Answer", True)
        show = cli.here("run", model, "x", *GREEDY, "--think", "show")
        assert (show.text, show.err) == ("plan\n\nAnswer", "")
