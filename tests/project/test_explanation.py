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
        "kv = ", "--quant", "--device",
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


def test_levers_and_devices_are_shown(page: Page) -> None:
    levers = page.shows("--quant")
    assert all(part in levers for part in ("prefix cached", "retrieved", "Q2_K", "at once"))
    assert "all devices" in page.shows("--device")
