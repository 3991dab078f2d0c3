"""A context whose size was left to llmrun grows with what is in it, through the real command."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from llmrun.app import plan
from llmrun.app.answer import growth
from llmrun.memory.plan import DeviceInfo
from llmrun.units import GIB

from tests.support.cli import Cli
from tests.support.models import gemma_path
from tests.support.puppet import write_puppet
from tests.support.requests import CHAT_TEMPLATE
from tests.support.rpc import rpc_server
from tests.support.talk import Talk, last_session
from tests.support.tiny import write_tiny

GREEDY = ("--temp", "0")
TRAINED = 1 << 15


@pytest.fixture(autouse=True)
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory enough for any context in this process, whatever else the machine is busy with."""
    monkeypatch.setattr(growth, "devices_now", lambda: (DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB),))


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    """Answers "fine"; one token for each byte of a message without blanks."""
    return write_puppet(tmp_path / "fine.gguf", ["fine"], template=CHAT_TEMPLATE, n_ctx=TRAINED).path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "endless.gguf", ["tick ", "tock "], loop=True, n_ctx=1 << 17).path


def test_a_prompt_beyond_the_first_size(cli: Cli, fine: Path) -> None:
    ended = cli.here("run", fine, *GREEDY, "--json", "-v", stdin=b"x" * 9000)
    document = ended.document
    assert document["text"] == "fine"
    assert document["usage"]["prompt_tokens"] > 9000
    assert document["settings"]["n_ctx"] == document["kv"]["capacity_tokens"] == 16384
    assert "grown from 8,192 to 16,384" in ended.err
    assert cli.here("run", fine, *GREEDY, "-c", "8192", stdin=b"x" * 9000).status == 6


def test_an_answer_beyond_the_first_size(cli: Cli, endless: Path) -> None:
    document = cli.here("run", endless, "x", *GREEDY, "-n", "8400", "--json").document
    assert document["text"] == "tick tock " * 4200
    assert document["finish_reason"] == "length"
    assert document["kv"]["capacity_tokens"] == 16384
    assert document["kv"]["tokens"] == document["usage"]["total_tokens"] - 1


def test_a_prompt_beyond_the_trained_length_is_refused_without_growing(cli: Cli, fine: Path) -> None:
    ended = cli.here("run", fine, *GREEDY, "-v", stdin=b"x" * (TRAINED + 1))
    assert (ended.status, ended.out) == (6, b"")
    assert "32,768" in ended.err


def test_a_chat_shows_the_size_it_has(cli: Cli, fine: Path) -> None:
    file = cli.folder / "long.txt"
    file.write_text("x" * 9000)
    with cli.terminal("chat", fine, *GREEDY, columns=120) as terminal:
        talk = Talk(terminal)
        assert "/8,192 tokens" in talk.says("hello")
        talk.says(f"/read {file}")
        grown = talk.says("what?")
        assert "grown from 8,192 to 16,384" in grown
        assert "/16,384 tokens" in grown
        assert "16,384" in talk.says("/context").partition("held")[2].partition("\n")[0]
        assert "auto, 16,384 tokens now" in talk.says("/set n_ctx")
        assert "auto, 16,384 tokens now" in talk.says("/show")
        assert "grown" not in talk.says("short")
        talk.says("/model")
        assert "0 of 8,192" in talk.says("/context")
        assert "grown" in talk.says("again")
        talk.says("/undo")
        talk.leaves()
    assert [turn.left_out for turn in last_session(cli).turns] == [0, 0, 0]


def test_ctrl_c_at_a_growth_leaves_a_chat_that_works(cli: Cli, endless: Path) -> None:
    with cli.terminal("chat", endless, *GREEDY, columns=120) as terminal:
        talk = Talk(terminal)
        place = talk.enters("go")
        terminal.wait_for("grown", after=place)
        terminal.send("\x03")
        terminal.wait_for("interrupted", after=place)
        terminal.wait_for_prompt()
        shown = talk.says("/context")
        assert any(f"of {1 << power:,} tokens" in shown for power in range(14, 18))
        talk.says("/set max_tokens 5")
        assert "tick tock tick" in talk.says("more")
        talk.leaves()


@pytest.mark.parametrize("words", [("-np", "2"), ("-np", "2", "--no-kv-unified")])
def test_several_sequences_grow_together(cli: Cli, fine: Path, words: tuple[str, ...]) -> None:
    document = cli.here("run", fine, *GREEDY, *words, "--json", stdin=b"x" * 9000).document
    assert document["text"] == "fine"
    assert document["settings"]["n_ctx"] == document["kv"]["capacity_tokens"] > 9000


def test_a_conversation_that_has_grown_is_gone_on_with_from_disk(
    caching: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "DEFAULT_CTX", 1024)
    model = write_tiny(tmp_path / "m.gguf", "llama", n_ctx=TRAINED, template=CHAT_TEMPLATE)
    words = ("chat", model, *GREEDY, "-n", "8", "-ub", "2048", "--session", "s")
    for text in (b"x" * 2300, b"short", b"y" * 400):
        assert caching.here(*words, stdin=text).status == 0
        assert caching.request_log[-1]["settings"]["n_ctx"] == 4096
    usages = [record["usage"] for record in caching.request_log]
    for before, after in pairwise(usages):
        held = before["prompt_tokens"] + before["completion_tokens"] - 1
        assert after["prompt_tokens_details"]["cached_tokens"] >= held - 8
    assert last_session(caching).turns[-1].left_out == 0


def test_short_of_memory_a_chat_leaves_messages_out(
    cli: Cli, fine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [0]
    monkeypatch.setattr(growth, "devices_now", lambda: (DeviceInfo("CPU", "cpu", free[0], 64 * GIB),))
    words = ("chat", fine, *GREEDY, "--session", "s")
    assert cli.here(*words, stdin=b"a" * 5000).text == "fine"
    second = cli.here(*words, "-v", stdin=b"b" * 5000)
    assert "first 2 messages are left out" in second.err
    assert "memory has no room" in second.err
    refused = cli.here(*words, stdin=b"b" * 9000)
    assert (refused.status, refused.out) == (6, b"")
    assert "memory has no room" in refused.err
    assert "-c " not in refused.err
    free[0] = 64 * GIB
    third = cli.here(*words, "-v", stdin=b"c")
    assert "grown" in third.err
    assert [turn.left_out for turn in last_session(cli).turns] == [0, 1, 0]


def test_short_of_memory_an_answer_ends(cli: Cli, endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "devices_now", lambda: (DeviceInfo("CPU", "cpu", 0, 64 * GIB),))
    ended = cli.here("run", endless, "x" * 7000, *GREEDY, "--json")
    assert (ended.document["finish_reason"], ended.document["kv"]["tokens"]) == ("context", 8192)
    assert "memory has no room" in ended.err


@pytest.mark.slow
def test_a_cache_on_another_device(cli: Cli, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", "llama", n_ctx=TRAINED, template=CHAT_TEMPLATE)
    words = ("run", model, *GREEDY, "-n", "20", "--json", "--no-prefix-cache", "-ub", "2048")
    with rpc_server() as server:
        offloaded = ("--rpc", server, "-ngl", "99", "--reserve", "0")
        grown = cli(*words, *offloaded, stdin=b"x" * 8500).document
        (device,) = {one["device"] for one in grown["kv"]["devices"]}
        assert device.startswith("RPC")
        assert grown["kv"]["capacity_tokens"] == 16384
        large = cli(*words, *offloaded, "-c", "16384", stdin=b"x" * 8500).document
    assert grown["text"] == large["text"]
    assert grown["kv"]["devices"] == large["kv"]["devices"]


@pytest.mark.slow
def test_a_real_model_of_a_sliding_window(cli: Cli) -> None:
    lines = [f"{i} jumps over dog {i * 7 % 13}." for i in range(820)]
    text = f"The quick brown fox number {' '.join(lines)}".encode()
    words = ("run", gemma_path(), *GREEDY, "-n", "8", "--json", "--no-prefix-cache")
    env = {"LLMRUN_THREADS": "auto"}
    grown = cli(*words, stdin=text, env=env).document
    assert grown["usage"]["prompt_tokens"] > 8192
    assert grown["kv"]["capacity_tokens"] == 16384
    large = cli(*words, "-c", "16384", stdin=text, env=env).document
    assert grown["text"] == large["text"]
