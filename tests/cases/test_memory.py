"""Public bug reports on memory, offload and cache types. The comment above a test names the report."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmrun.commands.process import run_guarded
from llmrun.engine import amx
from llmrun.engine.probe.client import ProbeOutcome

from tests.support.archs import write_arch
from tests.support.cli import Cli
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet
from tests.support.tiny import HEAD_SIZE, write_tiny

GREEDY = ("--temp", "0")
MIB = 1 << 20
SLOW = pytest.mark.slow
CRASH = ProbeOutcome(("plain",), -signal.SIGSEGV)


def limited(kib: int) -> tuple[str, ...]:
    """Starts a program with so much address space."""
    return ("sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh")


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)? ?[GM]iB", text)


# ggml-org/llama.cpp#20824, stanfordnlp/dspy PR#10079
class TestCrashOfAmxKernels:
    @pytest.fixture
    def amx_cpu(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
        """What the CPU says it can, and an empty memory of verdicts."""
        monkeypatch.setattr(amx, "read_text", lambda _: "flags\t\t: fpu avx2 amx_tile amx_int8\n")
        return {"LLMRUN_CACHE_DIR": str(tmp_path / "cache")}

    @pytest.mark.parametrize("path", [smollm2_path, pytest.param(gemma_path, marks=SLOW)])
    def test_a_batch_of_several_tokens_here(self, cli: Cli, path: Any) -> None:
        words = ("run", path(), "The sky above the port was", "--raw", *GREEDY, "-n", "1", "-c", "256")
        ended = cli(*words, "--json")
        assert (ended.status, ended.err) == (0, "")
        assert ended.document["usage"]["prompt_tokens"] >= 6

    def test_they_are_left_out_where_they_crash(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amx_cpu: dict[str, str]
    ) -> None:
        """Found once, by a child that dies; the verdict is kept."""
        outcomes = [CRASH]
        monkeypatch.setattr(amx, "run_compute_probe", outcomes.pop)
        path = write_puppet(tmp_path / "p.gguf", ["ok"]).path
        first = cli.here("run", path, "a few words", *GREEDY, "--json", "-v", env=amx_cpu)
        second = cli.here("run", path, "a few words", *GREEDY, "--json", env=amx_cpu)
        assert "SIGSEGV" in first.err
        assert second.err == ""
        for ended in (first, second):
            assert (ended.status, ended.document["text"]) == (0, "ok")
            assert ended.document["settings"]["extra_bufts"] is False

    def test_a_library_that_crashes_anyway_is_named(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amx_cpu: dict[str, str]
    ) -> None:
        monkeypatch.setattr(amx, "run_compute_probe", lambda: ProbeOutcome((), -signal.SIGILL))
        path = write_puppet(tmp_path / "p.gguf", ["ok"]).path
        ended = cli.here("run", path, "x", *GREEDY, env=amx_cpu)
        assert (ended.status, ended.out) == (7, b"")
        assert "SIGILL" in ended.err
        assert "make" in ended.err.splitlines()[-1]

    def test_a_child_that_dies_by_a_signal_is_told(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        dies = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
        monkeypatch.setattr("llmrun.engine.probe.child.command", lambda _: dies)
        ended = cli.here("vram", "smollm2-135m", "--exact")
        assert ended.status != 0
        assert ended.out == b""
        assert "SIGSEGV" in ended.err
        formula = cli.here("vram", "smollm2-135m")
        assert formula.status == 0
        assert "SIGSEGV" in formula.err


# ggml-org/llama.cpp#8817 and PR#10136, oobabooga/textgen PR#6835
class TestWindowsOfAMillionTokens:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """One for 64 million, whose cache alone takes 8 GiB."""
        return write_puppet(tmp_path / "long.gguf", ["ok"], n_ctx=1 << 26).path

    def test_the_default_is_bounded(self, cli: Cli, model: Path) -> None:
        ended = cli("run", model, "x", *GREEDY, "--json", wrapper=limited(600_000))
        assert ended.status == 0, ended.err
        assert ended.document["settings"]["n_ctx"] == ended.document["kv"]["capacity_tokens"] == 8192
        assert cli.here("vram", model, "--json").document["settings"]["n_ctx"] == 8192

    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_too_large_a_one_is_refused_with_numbers(self, cli: Cli, model: Path, command: str) -> None:
        ended = cli(command, model, "-c", "max", stdin=b"x", wrapper=limited(600_000))
        assert (ended.status, ended.out) == (5, b"")
        assert "67,108,864 tokens" in ended.err
        needed, free = numbers(ended.err)[:2]
        assert needed.endswith("GiB")
        assert free.endswith("MiB")

    @pytest.mark.parametrize("kib", [600_000, pytest.param(1_000_000, marks=SLOW)])
    def test_what_is_said_to_fit_fits(self, cli: Cli, model: Path, kib: int) -> None:
        refused = cli("run", model, "x", "-c", "max", "--json", wrapper=limited(kib))
        (suggested,) = re.findall(r"-c (\d+)", refused.document["hint"])
        assert int(suggested) > 100_000
        ended = cli("run", model, "x", *GREEDY, "-c", suggested, "--json", wrapper=limited(kib))
        assert ended.status == 0, ended.err
        assert ended.document["settings"]["n_ctx"] == int(suggested)

    def test_memory_that_runs_out_anyway_is_told(self, cli: Cli, model: Path) -> None:
        ended = cli("run", model, "x", "-c", "4000000", "--force", wrapper=limited(600_000))
        assert (ended.status, ended.out) == (5, b"")
        assert 1 <= ended.err.count("\n") <= 2

    @pytest.mark.parametrize(
        "error",
        [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread")],
    )
    def test_also_where_python_lacks_it(self, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
        def fail() -> None:
            raise error

        assert run_guarded(fail, []) == 5
        assert capsys.readouterr().err.startswith("error: memory ran out")


# gpustack/gpustack#2101, tmac1973/llama-toolchest PR#58, ollama/ollama PR#17037
class TestCachesOfSlidingWindows:
    """gemma-3-270m: 18 layers of one head of 256 numbers, of which every sixth sees more than 512 tokens."""

    ROW_BYTES = 2 * 2 * 256
    FULL, WINDOWED = 3, 15
    WINDOW_CELLS = 512 + 512  # the window and a micro-batch

    @pytest.mark.parametrize("n_ctx", [4096, pytest.param(32768, marks=SLOW)])
    @pytest.mark.parametrize("pruned", [True, pytest.param(False, marks=SLOW)])
    def test_predicted_is_allocated(self, cli: Cli, n_ctx: int, pruned: bool) -> None:
        words = () if pruned else ("--swa-full",)
        ended = cli.here("vram", gemma_path(), "-c", str(n_ctx), "--verify", "--json", *words)
        assert ended.status == 0, ended.err
        cells = self.WINDOW_CELLS if pruned else n_ctx
        kv_bytes = self.ROW_BYTES * (self.FULL * n_ctx + self.WINDOWED * cells)
        (cpu,) = ended.document["verified"]
        for how in ("formula", "engine", "measured"):
            assert cpu[how]["kv_bytes"] == kv_bytes
            assert cpu[how]["sum_bytes"] == pytest.approx(cpu["measured"]["sum_bytes"], rel=0.05)
            parts = [size for name, size in cpu[how].items() if name != "sum_bytes"]
            assert sum(parts) == cpu[how]["sum_bytes"]
            assert cpu[how]["weights_bytes"] > kv_bytes > cpu[how]["compute_bytes"] > 0 or n_ctx > 4096

    @pytest.mark.parametrize(
        "words",
        [(), pytest.param(("--swa-full",), marks=SLOW), pytest.param(("--kv-type", "q8_0"), marks=SLOW)],
        ids=str,
    )
    def test_a_run_takes_what_was_predicted(self, cli: Cli, words: tuple[str, ...]) -> None:
        """The library's own log has the same figures, rounded to 0.01 MiB for each of the two caches."""
        common: list[str | Path] = [gemma_path(), "-c", "4096", *words]
        predicted = cli.here("vram", *common, "--json").document["totals"]["kv_bytes"]
        ended = cli("run", *common, "x", "--raw", *GREEDY, "-n", "1", "--json", "-v")
        assert ended.status == 0
        assert ended.document["kv"]["allocated_bytes"] == pytest.approx(predicted, abs=0.02 * MIB)
        logged = re.findall(r"KV buffer size = +([\d.]+) MiB", ended.err)
        assert len(logged) == 2
        assert sum(map(float, logged)) * MIB == pytest.approx(predicted, abs=0.02 * MIB)


# ggml-org/llama.cpp#9153, abetlen/llama-cpp-python#514 and #1953, simonw/llm-llama-cpp#19
class TestLayersForAGpuThatIsNotThere:
    def test_an_estimate_says_so(self, cli: Cli) -> None:
        ended = cli.here("vram", "smollm2-135m", "-ngl", "10", "--json")
        if len(ended.document["devices"]) > 1:
            pytest.skip("there is a GPU")
        assert ended.status == 0
        assert ended.err.startswith("warning: -ngl ")
        assert ended.err.count("\n") == 1
        assert ended.document["settings"]["n_gpu_layers"] == 0

    @pytest.mark.parametrize("command", ["run", "chat", "vram"])
    def test_a_switch_makes_it_an_error(self, cli: Cli, command: str) -> None:
        stdin = b"" if command == "vram" else b"Hi"
        ended = cli.here(command, "smollm2-135m", "-ngl", "99", "--strict", stdin=stdin)
        assert (ended.status, ended.out) == (2, b"")
        assert "99" in ended.err

    def test_the_words_for_it_are_in_the_help(self, cli: Cli) -> None:
        for command in ("run", "chat", "vram"):
            text = " ".join(re.sub(r"[│\s]+", " ", cli.here(command, "--help").text).split())
            assert "all (or -1)" in text
            assert "auto|all|N" in text


# ggml-org/llama.cpp#28524 and #10378, abetlen/llama-cpp-python#1305
class TestQuantizedCaches:
    """A row of SmolLM2 has 3 heads of 64 numbers; q8_0 takes 34 bytes for 32 of them."""

    BYTES: ClassVar = {"f16": 30 * 192 * 2, "q8_0": 30 * 192 * 34 // 32}

    @pytest.mark.parametrize(
        ("words", "types"),
        [
            (("--kv-type", "q8_0"), ("q8_0", "q8_0")),
            (("-ctv", "q8_0"), ("f16", "q8_0")),
            (("-ctk", "q8_0"), ("q8_0", "f16")),
        ],
        ids=str,
    )
    def test_each_alone_and_both(self, cli: Cli, words: tuple[str, ...], types: tuple[str, str]) -> None:
        common = ("smollm2-135m", "-c", "512", *words, "--json")
        document = cli.here("run", *common, "Hi", *GREEDY, "-n", "2").document
        assert document["text"]
        assert (document["kv"]["type_k"], document["kv"]["type_v"]) == types
        assert document["settings"]["flash_attn"] == "on"
        wanted = 512 * sum(self.BYTES[name] for name in types)
        assert document["kv"]["allocated_bytes"] == pytest.approx(wanted, abs=0.01 * MIB)
        assert cli.here("vram", *common).document["totals"]["kv_bytes"] == wanted

    def test_keys_alone_need_no_flash_attention(self, cli: Cli) -> None:
        words = ("run", "smollm2-135m", "Hi", *GREEDY, "-n", "2", "-c", "512", "--json")
        document = cli.here(*words, "-ctk", "q8_0", "-fa", "off").document
        assert (document["settings"]["flash_attn"], document["kv"]["type_k"]) == ("off", "q8_0")

    @pytest.mark.parametrize("words", [("--kv-type", "q8_0"), ("-ctv", "q4_0")], ids=str)
    @pytest.mark.parametrize("command", ["run", "chat", "vram"])
    def test_values_without_flash_attention_are_refused(
        self, cli: Cli, command: str, words: tuple[str, ...]
    ) -> None:
        stdin = b"" if command == "vram" else b"Hi"
        ended = cli.here(command, "smollm2-135m", *words, "-fa", "off", stdin=stdin)
        assert (ended.status, ended.out) == (2, b"")
        assert words[1] in ended.err
        assert "flash attention" in ended.err
        assert "-fa on" in ended.err.splitlines()[-1]

    @pytest.mark.parametrize("command", ["run", "chat", "vram"])
    def test_a_head_that_fills_no_block(self, cli: Cli, tmp_path: Path, command: str) -> None:
        path = write_tiny(tmp_path / "m.gguf", "llama")
        stdin = b"" if command == "vram" else b"Hi"
        ended = cli.here(command, path, "-ctk", "q8_0", stdin=stdin)
        assert (ended.status, ended.out) == (2, b"")
        assert f"{HEAD_SIZE}" in ended.err
        assert "q8_0" in ended.err

    @pytest.mark.parametrize("command", ["run", "vram"])
    def test_a_pair_that_cannot_be(self, cli: Cli, tmp_path: Path, command: str) -> None:
        path = write_arch(tmp_path / "m.gguf", "deepseek2", vocabulary=True)
        ended = cli.here(command, path, "-ctk", "q8_0", stdin=b"" if command == "vram" else b"Hi")
        assert (ended.status, ended.out) == (2, b"")
        assert "q8_0" in ended.err
        assert "f16" in ended.err
