"""The commands of docs/explanation/prefill-and-decode.md run, and what they show bears the text out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.pages import Page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "prefill-and-decode.md"
BLOCKS = Page.blocks_of(PAGE)


@pytest.fixture
def page(cli: Cli) -> Page:
    return Page(cli, PAGE, env={"LLMRUN_CTX": "512"})


def test_every_block_is_looked_at_here() -> None:
    parts = (
        "one.json\n", "grep -c", "cmp", "queue_ms", "emoji", "--weights", "doctor.json", "12000", "--explain",
        "kv = ", "--quant", "--device", "-p 1,5,64", "bytes_per_step", "requests.json",
    )  # fmt: skip
    assert len(BLOCKS) == len(parts)
    assert all(any(part in block for block in BLOCKS) for part in parts)


def test_the_output_takes_a_step_a_token_and_the_prompt_does_not(page: Page) -> None:
    prefill, tokens = map(int, page.shows("grep -c").split())
    page.run(BLOCKS[0])
    assert tokens == 4
    assert prefill < page.document("one.json")["usage"]["prompt_tokens"] / 4


def test_streaming_changes_no_text(page: Page) -> None:
    page.shows("cmp")
    assert (page.cli.folder / "whole.txt").read_text().strip()


def test_ttft_is_more_than_prefill_and_less_than_all(page: Page) -> None:
    page.run(BLOCKS[0])
    shown = {name: float(value) for name, value in map(str.split, page.shows("queue_ms").splitlines())}
    assert 0 < shown["prompt_ms"] < shown["ttft_ms"] < shown["total_ms"]
    assert shown["load_ms"] > 0


def test_some_tokens_come_without_text(page: Page) -> None:
    events = [json.loads(line) for line in page.shows("emoji").splitlines()]
    assert sum(event["n"] for event in events) == 6
    assert any(event["text"] == "" for event in events)


def test_the_ceiling_and_the_times_of_the_text(page: Page) -> None:
    assert "50.0 tok/s at most" in " ".join(page.shows("--weights").split())
    shown = page.shows("12000")
    assert all(part in shown for part in ("8.0 s", "94%", "20.5 s", "39%"))


def test_measured_rates_stand_beside_the_machines_bandwidth(page: Page) -> None:
    page.shows("doctor.json")
    findings = {found["check"]: found for found in page.document("doctor.json")["findings"]}
    assert findings["bandwidth"]["data"]["bytes_per_s"] > 0
    decode = next(record for record in page.document("bench.json") if record["n_gen"])
    assert decode["bandwidth_bytes_per_s"] > 0


def test_the_cache_costs_what_the_text_says_and_lacks_the_last_token(page: Page) -> None:
    assert f"{20_000 * 131_072:,}" in page.shows("--explain")
    page.run(BLOCKS[0])
    prompt, output, kept = map(int, re.findall(r"\b\d+(?= \+| - 1|$)", page.shows("kv = ").strip()))
    assert kept == prompt + output - 1


def test_levers_are_shown(page: Page) -> None:
    levers = page.shows("--quant")
    assert all(part in levers for part in ("prefix cached", "retrieved", "Q2_K", "at once"))


WRITERS = {"one.json": "-n 16 --temp 0 --json", "bench.json": "> bench.json"}
"""Files that blocks read, and a part of the block that writes each."""
_LINES = r"((?:(?!```).*\n)+)```$"
SHOWN = re.findall(
    rf"^```sh\n{_LINES}\n\n```text\n{_LINES}", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
)


def test_outputs_are_shown_where_they_are_the_same_everywhere() -> None:
    assert len(SHOWN) == 5


@pytest.mark.parametrize(("block", "output"), SHOWN, ids=[output.split("\n")[0] for _, output in SHOWN])
def test_a_block_shows_what_the_page_says(page: Page, block: str, output: str) -> None:
    for name, writer in WRITERS.items():
        if name in block:
            page.shows(writer)
    assert page.run(block) == output


def test_what_a_token_of_context_costs_a_step_is_what_it_takes_in_memory(page: Page) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (alone,), (deep,) = (
        re.findall(rf"^tg2{depth} +([\d,]+) bytes", text, re.MULTILINE) for depth in ("", " @ d64")
    )
    per_token = (int(deep.replace(",", "")) - int(alone.replace(",", ""))) // 64
    assert f"{per_token:,} for each: 2 x 30 layers x 3 KV heads x 64 numbers x 2 bytes" in text
    assert per_token == 2 * 30 * 3 * 64 * 2
    document = json.loads(page.run("llmrun vram $M -c 512 --json"))
    assert document["kv_bytes_per_token"] == per_token


def test_a_pass_of_five_tokens_stands_beside_one_of_a_single_token(page: Page) -> None:
    shown = page.shows("-p 1,5,64")
    assert [line.split("|")[-3].strip() for line in shown.splitlines()[2:5]] == ["pp1", "pp5", "pp64"]
