"""Public bug reports on pipes, terminals and Ctrl-C. The comment above a test names the report."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import Cli, program
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet
from tests.support.talk import Talk
from tests.support.waiting import TIMEOUT_S

GREEDY = ("--temp", "0")
BRACKETS = ["x ", "[/INST]", " [/] ", "[bold]b", " [link=http://x]y", "a[0]", " :smile:", " [red]"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "short.gguf", ["a short ", "answer"]).path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "endless.gguf", ["tick ", "tock "], loop=True, n_ctx=1 << 17).path


# abetlen/llama-cpp-python#1245, #478 and #2002
class TestQuietOnStderr:
    @pytest.mark.parametrize("real", [smollm2_path, gemma_path])
    def test_nothing_of_the_engine_leaks(self, cli: Cli, real: object) -> None:
        assert callable(real)
        ended = cli("run", real(), "--raw", "The sky is", *GREEDY, "-n", "3", "-c", "256")
        assert (ended.status, ended.err) == (0, "")
        assert ended.text

    def test_verbose_brings_the_log_back(self, cli: Cli, model: Path) -> None:
        ended = cli("run", model, "x", *GREEDY, "-v")
        assert ended.text == "a short answer"
        assert "llmrun.native: " in ended.err

    def test_an_error_is_all_there_is(self, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(b"GGUF")
        ended = cli("run", path, "x")
        assert (ended.status, ended.out) == (4, b"")
        assert 1 <= ended.err.count("\n") <= 2


# abetlen/llama-cpp-python#1874
class TestNothingIsLostWhileTheModelLoads:
    def test_streams_are_never_redirected(self, cli: Cli, model: Path, tmp_path: Path) -> None:
        """The engine's own writes and ours go where they went before, also after a load that failed."""
        script = f"""
import os, sys, threading, time
from llmrun.commands.cli import run_cli
done = threading.Event()
count = 0
def mark():
    global count
    while not done.is_set():
        os.write(2, b"#"); count += 1
        time.sleep(0.001)
thread = threading.Thread(target=mark); thread.start()
run_cli(["run", {str(model)!r}, "x", "--temp", "0"])
run_cli(["run", {str(tmp_path)!r}, "x"])
done.set(); thread.join()
os.write(1, b"|%d" % count)
"""
        done = subprocess.run(
            [program()[0], "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=cli.environment(),
            check=True,
        )
        answer, _, count = done.stdout.partition(b"|")
        assert answer == b"a short answer"
        assert done.stderr.count(b"#") == int(count) > 0
        assert b"error:" in done.stderr.replace(b"#", b"")


# ollama/ollama PR#16859 and #4686, containers/ramalama#684
class TestPlainOutput:
    def test_no_escape_codes_and_no_wrapping_behind_a_pipe(self, cli: Cli, tmp_path: Path) -> None:
        words = [f"word{n} " for n in range(60)]
        path = write_puppet(tmp_path / "long.gguf", words).path
        for env in ({"COLUMNS": "20"}, {"COLUMNS": "400"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}):
            ended = cli("run", path, "x", *GREEDY, "--stats", env=env)
            assert ended.text == "".join(words)
            assert "\x1b" not in ended.err
            assert "\r" not in ended.err
            assert ended.err.count("\n") < 12

    @pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_no_colour_on_a_terminal_that_asks_for_none(
        self, cli: Cli, model: Path, env: dict[str, str]
    ) -> None:
        with cli.terminal("run", model, "x", *GREEDY, env=env) as terminal:
            assert terminal.ended() == 0
            assert b"\x1b[3" not in terminal.raw
            assert b"\x1b[9" not in terminal.raw
            assert "tok/s" in terminal.text
        with cli.terminal("run", "/no/such.gguf", "x", env=env) as terminal:
            assert terminal.ended() == 3
            assert b"\x1b" not in terminal.raw

    def test_colour_on_a_terminal(self, cli: Cli, model: Path) -> None:
        with cli.terminal("run", model, "x", *GREEDY) as terminal:
            assert terminal.ended() == 0
            assert b"\x1b[" in terminal.raw


# Backblaze/B2_Command_Line_Tool#1071
class TestReaderGoesAway:
    @pytest.mark.parametrize("flags", [(), ("--stream", "json"), ("--stats",)])
    def test_ends_quietly(self, cli: Cli, endless: Path, flags: tuple[str, ...]) -> None:
        running = cli.start("run", endless, "x", *GREEDY, *flags)
        assert running.process.stdout is not None
        os.read(running.process.stdout.fileno(), 5)
        running.process.stdout.close()
        assert running.process.wait(TIMEOUT_S) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""
        running.process.stderr.close()

    def test_before_anything_was_written(self, cli: Cli, model: Path) -> None:
        running = cli.start("run", model, "x", *GREEDY, "--json")
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.process.wait(TIMEOUT_S) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""
        running.process.stderr.close()


# simonw/llm#472 and #1224, containers/ramalama#636
class TestInterrupts:
    def test_run_keeps_what_was_said_and_exits_130(self, cli: Cli, endless: Path) -> None:
        running = cli.start("run", endless, "x", *GREEDY)
        running.read_until(b"tick tock tick ")
        ended = running.interrupt()
        assert ended.status == 130
        assert ended.text.startswith("tick tock tick ")
        assert "Traceback" not in ended.err
        assert "Exception" not in ended.err

    def test_json_is_one_whole_document(self, cli: Cli, endless: Path) -> None:
        """Also when it comes while the model loads; then the document is an error's."""
        running = cli.start("run", endless, "x", *GREEDY, "--json", "-v")
        assert running.process.stderr is not None
        running.process.stderr.read(20)
        ended = running.interrupt()
        assert ended.status == 130
        assert ended.document["schema"] in ("llmrun.completion/1", "llmrun.error/1")

    def test_stream_ends_with_its_last_event(self, cli: Cli, endless: Path) -> None:
        running = cli.start("run", endless, "x", *GREEDY, "--stream", "json")
        running.read_until(b'"event": "token"')
        ended = running.interrupt()
        assert ended.status == 130
        last = ended.records[-1]
        assert (last["event"], last["finish_reason"]) == ("finished", "interrupted")
        assert ended.err == ""

    def test_during_prefill(self, cli: Cli) -> None:
        """A prompt that takes a minute to evaluate; the first progress line shows that it has begun."""
        prompt = cli.folder / "long.txt"
        prompt.write_text("The quick brown fox jumps over the lazy dog. " * 2800)
        words = ("run", gemma_path(), "-f", prompt, "-c", "max", *GREEDY, "--stream", "json")
        running = cli.start(*words)
        running.read_until(b'"event": "prefill"')
        ended = running.interrupt()
        assert ended.status == 130
        last = ended.records[-1]
        assert (last["finish_reason"], last["text"]) == ("interrupted", "")
        assert last["usage"]["completion_tokens"] == 0
        assert last["timings"]["prompt_per_second"] is None
        assert last["timings"]["ttft_ms"] is None

    def test_while_the_prompt_is_read(self, cli: Cli, model: Path) -> None:
        process = subprocess.Popen(
            program("run", model, "--json"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=cli.environment(),
        )
        assert process.stdin is not None
        process.stdin.write(b"x" * 1_000_000)  # more than a pipe holds: when it is written, it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert out.startswith(b'{"schema": "llmrun.error/1", "code": "interrupted"')

    def test_chat_goes_on_after_a_stopped_answer(self, cli: Cli, endless: Path) -> None:
        with cli.terminal("chat", endless, *GREEDY) as terminal:
            talk = Talk(terminal)
            for number in range(2):
                place = talk.enters(f"message {number}")
                place = terminal.wait_for("tick tock", after=place)
                terminal.send("\x03")
                terminal.wait_for("interrupted", after=place)
                terminal.wait_for_prompt()
            talk.leaves()
        first, second = cli.request_log
        assert first["finish_reason"] == second["finish_reason"] == "interrupted"
        assert second["timings"]["cache_n"] > 0

    def test_ctrl_c_at_the_prompt_hints_first(self, cli: Cli, model: Path) -> None:
        with cli.terminal("chat", model, *GREEDY) as terminal:
            terminal.wait_for_prompt()
            terminal.send("\x03")
            terminal.wait_for("Ctrl-D")
            terminal.wait_for_prompt()
            terminal.send("\x03")
            assert terminal.ended() == 130
            assert terminal.modes == terminal.modes_before

    def test_a_message_between_two_ctrl_c_forgives_the_first(self, cli: Cli, model: Path) -> None:
        with cli.terminal("chat", model, *GREEDY) as terminal:
            terminal.wait_for_prompt()
            terminal.send("\x03")
            terminal.wait_for("Ctrl-D")
            terminal.wait_for_prompt()
            terminal.send("hello\r")
            place = terminal.wait_for("a short answer")
            terminal.wait_for_prompt()
            terminal.send("\x03")
            terminal.wait_for("Ctrl-D", after=place)
            terminal.wait_for_prompt()
            terminal.send("\x04")
            assert terminal.ended() == 0


# simonw/llm and others: prompt arguments and piped text, containers/ramalama PR#295, ollama/ollama#568
class TestPromptAndStandardInput:
    @pytest.fixture
    def echo(self, tmp_path: Path) -> Path:
        return write_puppet(tmp_path / "echo.gguf", ["ok"], template="{{ messages[0].content }}<|go|>").path

    def tokens(self, cli: Cli, *words: str | Path, stdin: bytes = b"") -> int:
        """Prompt tokens less BOS and the last control token: the bytes of the message."""
        document = cli.here("run", *words, *GREEDY, "--json", stdin=stdin).document
        return int(document["usage"]["prompt_tokens"]) - 2

    def test_both_are_used(self, cli: Cli, echo: Path) -> None:
        assert self.tokens(cli, echo, "sum", stdin=b"text") == len("sum\n\ntext")
        assert self.tokens(cli, echo, stdin=b"two\nlines\n") == len("two\nlines\n")
        assert self.tokens(cli, echo, "sum", "--no-stdin", stdin=b"text") == len("sum")

    def test_words_without_quotes_belong_together(self, cli: Cli, echo: Path) -> None:
        assert self.tokens(cli, echo, "sum", "up") == self.tokens(cli, echo, "sum up") > len("sumup")
        assert self.tokens(cli, echo, "sum", "-p", "twice") == len("sum\n\ntwice")

    def test_no_input_does_not_hang(self, cli: Cli, echo: Path) -> None:
        assert cli("run", echo, "q", *GREEDY).text == "ok"
        assert cli("run", echo, "q", *GREEDY, stdin="closed").text == "ok"
        with cli.terminal("run", echo, "q", *GREEDY, "--no-stats") as terminal:
            assert terminal.ended() == 0

    @pytest.mark.parametrize("stdin", [b"", b" \n\n"])
    def test_an_empty_prompt_is_a_usage_error(self, cli: Cli, echo: Path, stdin: bytes) -> None:
        assert cli.here("run", echo, stdin=stdin).status == 2
        assert cli.here("chat", echo, stdin=stdin).status == 2
        assert cli.here("run", echo, " ").status == 2

    def test_a_loop_that_reads_lines_sees_them_all(self, cli: Cli, echo: Path) -> None:
        script = 'while read -r line; do "$@" "$line" --no-stdin --temp 0; echo; done'
        lines = b"one\ntwo\nthree\n"
        done = subprocess.run(
            ["sh", "-c", script, "sh", *program("run", echo)],
            input=lines,
            capture_output=True,
            env=cli.environment(),
            check=True,
        )
        assert done.stdout == b"ok\n" * 3
        assert [r["usage"]["prompt_tokens"] - 2 for r in cli.request_log] == [3, 3, 5]

    def test_five_megabytes_are_refused_with_both_numbers(self, cli: Cli) -> None:
        ended = cli.here("run", smollm2_path(), stdin=b"word " * 1_000_000)
        assert ended.status == 6
        needed, available = re.findall(r"\d+,[\d,]+\d", ended.err)[:2]
        assert int(needed.replace(",", "")) > 1_000_000
        assert available == "8,192"

    def test_bytes_that_are_no_text_are_refused(self, cli: Cli, echo: Path) -> None:
        assert cli.here("run", echo, stdin=b"ok \xff").status == 2
        assert cli("run", echo, b"\xff").status == 2
        assert cli("chat", echo, "-sys", b"\xff", stdin=b"x").status == 2
        assert cli("run", echo, "x", env={"LLMRUN_SYSTEM": os.fsdecode(b"\xff")}).status == 2


# ggozad/oterm#11, lm-sys/FastChat PR#2553, cecli-dev/cecli#175
class TestBracketsAreText:
    def test_in_the_answer(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "brackets.gguf", BRACKETS).path
        text = "".join(BRACKETS)
        assert cli.here("run", path, "x", *GREEDY).text == text
        with cli.terminal("run", path, "x", *GREEDY, columns=120) as terminal:
            assert terminal.ended() == 0
            assert terminal.display[0] == text
        with cli.terminal("chat", path, *GREEDY, columns=120) as terminal:
            terminal.wait_for_prompt()
            terminal.send("[bold]hi[/]\r")
            terminal.wait_for(text)
            terminal.wait_for_prompt()
            terminal.send("\x04")
            assert terminal.ended() == 0

    def test_in_names_and_errors(self, cli: Cli, tmp_path: Path) -> None:
        folder = tmp_path / "[red]"
        folder.mkdir()
        path = write_puppet(folder / "[bold]b :smile:.gguf", ["ok"]).path
        with cli.terminal("run", path, "x", "-sys", "[/INST]", *GREEDY, columns=100) as terminal:
            assert terminal.ended() == 0
            assert "[bold]b :smile:.gguf" in terminal.text
        ended = cli.here("run", folder / "[i]missing[/].gguf", "x")
        assert "[i]missing[/].gguf" in ended.err

    def test_in_reasoning_that_is_shown(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "thought.gguf", ["<think>", "[bold]b", "[/]", "</think>", "ok"]).path
        ended = cli.here("run", path, "x", *GREEDY, "--think", "dim")
        assert "[bold]b[/]" in ended.err


def test_control_characters_of_a_model_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    """promptfoo/modelaudit PR#1580: escapes in an answer are shown, behind a pipe they pass unchanged."""
    said = ["\x1b]0;owned\x07", "\x1b[31m", "\u202e", "\x9b31m", "plain", "\r", "over"]
    path = write_puppet(tmp_path / "escapes.gguf", said).path
    assert cli.here("run", path, "x", *GREEDY).text == "".join(said)
    with cli.terminal("run", path, "x", *GREEDY, "-q") as terminal:
        assert terminal.ended() == 0
        assert not {b"\x1b", b"\x07"} & {terminal.raw[i : i + 1] for i in range(len(terminal.raw))}
        assert terminal.raw.count(b"\r") == 1
        assert "plain" in terminal.display[0]
        assert "over" in terminal.display[0]
