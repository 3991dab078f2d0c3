"""The commands of docs/explanation/kv-cache-and-prefixes.md run, and what they show bears the text out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.pages import Page
from tests.support.requests import CHAT_TEMPLATE
from tests.support.talk import Talk
from tests.support.tiny import Arch, write_tiny

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "kv-cache-and-prefixes.md"
MOST_TRIES = 8


@pytest.fixture
def page(cli: Cli) -> Page:
    env = {"LLMRUN_CACHE_DIR": str(cli.folder / "cache"), "LLMRUN_PREFIX_CACHE_MIB": "auto"}
    return Page(cli, PAGE, env)


def reused(text: str) -> tuple[int, int]:
    """Reused tokens and all of them, as --explain-cache and /context say."""
    found = re.search(r"last reuse:? +([\d,]+) of ([\d,]+)", text)
    assert found is not None, text
    cached, prompt = (int(number.replace(",", "")) for number in found.groups())
    return cached, prompt


def test_every_block_is_looked_at_here() -> None:
    parts = ("first.json\n", "kv = ", "same.txt", "last.txt", "edited.txt", "kept.txt", "headroom")
    blocks = Page.blocks_of(PAGE)
    assert len(blocks) == len(parts)
    assert all(any(part in block for block in blocks) for part in parts)


@pytest.mark.slow
def test_what_is_reused_of_a_prompt(page: Page) -> None:
    for _ in range(MOST_TRIES):  # kept once it pays, by times that a busy machine makes longer or shorter
        page.run(page.blocks[0])
        if page.run("llmrun cache ls 2> sum.txt"):
            break
    prompt, output, held = map(int, re.findall(r"\b\d+(?= \+| - 1|$)", page.shows("kv = ").strip()))
    assert held == prompt + output - 1
    assert reused(page.shows("same.txt")) == (prompt - 1, prompt)
    other = page.shows("last.txt")
    assert prompt - 20 < reused(other)[0] < prompt - 1
    assert "first?" in other
    assert "last?" in other
    edited = page.shows("edited-cache.txt")
    assert reused(edited)[0] < 60
    assert "lantern" in edited
    assert "smollm2-135m" in page.shows("kept.txt")


@pytest.mark.slow
def test_headroom_makes_leaving_out_rare(page: Page) -> None:
    none, some = (int(count) for count in re.findall(r"on (\d+) of 7", page.shows("headroom")))
    assert 0 < some < none


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("llama", ""),
        ("gemma3", "the sliding window has passed token "),
        ("mamba", "the model's state cannot go back to token "),
        ("falcon-h1", "the model's state cannot go back to token "),
    ],
)
@pytest.mark.parametrize("helped", [False, True])
def test_going_back_on_each_memory_kind(
    cli: Cli, tmp_path: Path, arch: Arch, reason: str, helped: bool
) -> None:
    model = write_tiny(tmp_path / "m.gguf", arch, template=CHAT_TEMPLATE)
    words = ("chat", model, "--temp", "0", "-n", "40", "-ub", "64", "--no-save")
    off = () if helped else ("--no-prefix-cache",)
    with cli.terminal(*words, *off, columns=150) as terminal:
        talk = Talk(terminal)
        talk.says(
            "This is the first message of a conversation, and it is a rather long one, as it has to be."
        )
        talk.says("This is the second.")
        talk.says("/undo")
        talk.says("Another second one.")
        shown = talk.says("/context")
        talk.leaves()
    cached, prompt = reused(shown)
    if helped or not reason:
        assert prompt / 2 < cached < prompt
        assert "from a checkpoint" in shown or not reason
    else:
        assert cached == 0
        assert reason in shown
