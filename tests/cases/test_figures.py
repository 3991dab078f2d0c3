"""Public bug reports on counts, rates, layers and threads. The comment above a test names the report."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.models import smollm2_path
from tests.support.puppet import Item, byte_items, write_puppet

GREEDY = ("--temp", "0")
ROUNDED_MS = 0.005
"""What rounding to microseconds makes of a sum of a few times, however short they are."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "puppet.gguf", ["ok"]).path


# ggml-org/llama.cpp#9153, abetlen/llama-cpp-python#514 and #1953
class TestGpuLayersWithoutGpu:
    @pytest.mark.parametrize(("asked", "shown"), [("99", 99), ("-1", "all"), ("all", "all")])
    def test_a_warning_and_both_numbers(self, cli: Cli, model: Path, asked: str, shown: object) -> None:
        ended = cli.here("run", model, "x", *GREEDY, "-ngl", asked, "--json")
        assert ended.status == 0
        assert ended.err.startswith("warning: ")
        assert ended.err.count("\n") == 1
        settings = ended.document["settings"]
        assert settings["n_gpu_layers"] == shown
        assert settings["n_gpu_layers_offloaded"] == 0

    @pytest.mark.parametrize("asked", ["0", "auto"])
    def test_nothing_is_said_where_none_was_asked_for(self, cli: Cli, model: Path, asked: str) -> None:
        assert cli.here("run", model, "x", *GREEDY, "-ngl", asked).err == ""


# ollama/ollama#17916, abetlen/llama-cpp-python#89
class TestThreads:
    @pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
    def test_no_more_than_the_affinity_allows(self, cli: Cli, model: Path) -> None:
        cpu = str(min(os.sched_getaffinity(0)))
        env = {"LLMRUN_THREADS": ""}
        ended = cli("run", model, "x", *GREEDY, "--json", env=env, wrapper=("taskset", "-c", cpu))
        settings = ended.document["settings"]
        assert (settings["n_threads"], settings["n_threads_batch"]) == (1, 1)

    def test_what_was_asked_for_wins(self, cli: Cli, model: Path) -> None:
        for words, env in ((("-t", "3"), {}), ((), {"LLMRUN_THREADS": "3"})):
            settings = cli.here("run", model, "x", *GREEDY, "--json", *words, env=env).document["settings"]
            assert settings["n_threads"] == settings["n_threads_batch"] == 3


# eugr/llama-benchy#18, PostHog/posthog PR#47913
class TestTokensAreCounted:
    WORDS: tuple[Item, ...] = tuple(f"word{number} " for number in range(40))
    CHARACTERS: tuple[Item, ...] = tuple(byte_items("é日🦙"))

    @pytest.mark.parametrize("flags", [("--json",), ("--stream", "json"), ("--json", "--no-stream")])
    def test_sampled_tokens_not_pieces_of_text(
        self, cli: Cli, tmp_path: Path, flags: tuple[str, ...]
    ) -> None:
        puppet = write_puppet(tmp_path / "count.gguf", [*self.WORDS, *self.CHARACTERS])
        last = cli.here("run", puppet.path, "x", *GREEDY, *flags).records[-1]
        assert last["text"] == puppet.shown.decode()
        sampled = len(puppet.tokens) + 1  # and the one that ends the turn
        assert last["usage"]["completion_tokens"] == last["timings"]["predicted_n"] == sampled
        took_ms = (sampled - 1) * 1000 / last["timings"]["predicted_per_second"]
        assert last["timings"]["predicted_ms"] == pytest.approx(took_ms, abs=ROUNDED_MS)


# duolahypercho/codex-router PR#195, simonw/llm#943
class TestPhasesAreApart:
    def test_no_field_holds_another_ones_time(self, cli: Cli) -> None:
        prompt = b"The quick brown fox. " * 40
        for text, limit in ((b"Hi", "4"), (prompt, "4")):
            ended = cli.here("run", smollm2_path(), *GREEDY, "-n", limit, "-c", "1024", "--json", stdin=text)
            self.check(ended.document["timings"])

    def check(self, timings: dict[str, Any]) -> None:
        assert timings["load_ms"] > 0
        before = timings["queue_ms"] + timings["tokenize_ms"] + timings["prompt_ms"]
        assert before <= timings["ttft_ms"] + ROUNDED_MS
        assert timings["total_ms"] == pytest.approx(timings["ttft_ms"] + timings["predicted_ms"], abs=0.01)
        decode_ms = (timings["predicted_n"] - 1) * 1000 / timings["predicted_per_second"]
        assert timings["predicted_ms"] == pytest.approx(decode_ms, abs=ROUNDED_MS)
        prefill_ms = timings["prompt_n"] * 1000 / timings["prompt_per_second"]
        assert timings["prompt_ms"] == pytest.approx(prefill_ms, abs=ROUNDED_MS)
