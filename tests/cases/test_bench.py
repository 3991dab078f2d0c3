"""What other tools got wrong in benchmarks: C64 and C67 to C71 of the collected reports."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.cli import Cli, strict_json
from tests.support.engines import open_llama
from tests.support.models import smollm2_path
from tests.support.puppet import byte_items, write_puppet
from tests.support.waiting import wait_until

CHARACTERS = "éψ漢🙂אŋλل"
"""Of bytes that are all different: a puppet says each token once."""


def test_c67_every_repetition_evaluates_the_whole_prompt(cli: Cli) -> None:
    ended = cli.here(
        "bench", smollm2_path(), "-p", "16", "-n", "2", "-r", "3", "--json", "--prompt", "Tell me a story."
    )
    records = ended.document["records"]  # refuses NaN and infinity
    prompt, _, cold, cached = records
    assert len(prompt["samples_ts"]) == 3
    assert cold["n_evaluated"] == cold["n_prompt"]
    assert (cold["cache"], cached["cache"], cached["n_evaluated"]) == ("cold", "cached", 1)


@pytest.mark.parametrize("stream", [True, False])
def test_c68_generated_tokens_are_what_was_sampled(cli: Cli, tmp_path: Path, stream: bool) -> None:
    """Words that are a token each, and characters of several tokens, one byte each."""
    script = [*(f" word{index}" for index in range(40)), *byte_items(CHARACTERS)]
    model = write_puppet(tmp_path / "script.gguf", script).path
    ended = cli.here("run", model, "x", "--json", *([] if stream else ["--no-stream"]))
    made = len(script) + 1
    timings = ended.document["timings"]
    assert ended.document["usage"]["completion_tokens"] == timings["predicted_n"] == made
    took_ms = (made - 1) / timings["predicted_per_second"] * 1000
    assert timings["predicted_ms"] == pytest.approx(took_ms, abs=0.005)  # microseconds are rounded
    record = cli.here(
        "bench", model, "-p", "0", "-n", str(made), "-r", "1", "--json", "--prompt", "x"
    ).document
    assert record["records"][-1]["n_gen"] == made


def test_c69_load_first_token_and_generation_are_apart(cli: Cli) -> None:
    """What the rate of output is made of does not change with the length of prompt or answer."""
    text = "word " * 30
    ended = cli.here(
        "bench", smollm2_path(), "-p", "0", "-n", "4,12", "-r", "1", "--json", "--prompt", text, "--no-warmup"
    )
    for record in ended.document["records"]:
        if record["kind"] != "e2e":
            continue
        itl_s = record["itl_ms"]["mean"] / 1000
        assert record["predicted_per_second"] == pytest.approx(1 / itl_s, rel=1e-2)
        assert record["load_ms"] > 0
        decoding_ms = record["total_ms"] - record["ttft_ms"]["total"]
        assert decoding_ms == pytest.approx((record["n_gen"] - 1) * itl_s * 1000, rel=1e-2)


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="the system counts no reads")
def test_c69_a_file_that_is_not_cached_is_read_while_it_loads(tmp_path: Path) -> None:
    """So a cold file cache shows in the load time, and neither in the first token nor in the rate."""
    model = Path(shutil.copy(smollm2_path(), tmp_path / "model.gguf"))
    with model.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    engine = open_llama(model, n_ctx=256)
    loaded = bytes_read()
    assert engine.feed([(0, token) for token in range(20)]) == "ok"
    assert engine.feed([(0, 1)]) == "ok"
    engine.close()
    assert bytes_read() - loaded < model.stat().st_size / 10


def bytes_read() -> int:
    """From disks, by this process."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["read_bytes"])


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_c64_threads_stay_within_the_affinity(cli: Cli, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    model = write_puppet(tmp_path / "m.gguf", ["x"]).path
    ended = cli(
        *("bench", model, "-p", "4", "-n", "2", "-r", "1", "--json"),
        wrapper=("taskset", "-c", str(cpu)),
        env={"LLMRUN_THREADS": "auto"},
    )
    assert {record["n_threads"] for record in ended.document["records"]} == {1}


def test_c71_an_interrupted_run_is_valid_json_and_marked(cli: Cli) -> None:
    running = cli.start(
        "bench",
        smollm2_path(),
        "-p",
        "4",
        "-n",
        "4096",
        "-r",
        "30",
        "--json",
        "-v",
        env={"LLMRUN_THREADS": "1"},
    )
    history = cli.data_dir / "bench.jsonl"
    # the first of two tests is complete, the second takes minutes
    wait_until(lambda: history.exists() and history.read_text().endswith("\n"), "first test")
    ended = running.interrupt()
    document = strict_json(ended.text)
    assert ended.status == 130
    assert document["schema"] == "llmrun.bench/1"
    assert document["complete"] is False
    assert document["records"][0]["test"] == "pp4"
    assert {"build_commit", "n_threads", "model_digest"} <= document["records"][0].keys()
    assert "llmrun.native" in ended.err
    kept = [json.loads(line)["record"]["test"] for line in history.read_text().splitlines()]
    assert kept == [record["test"] for record in document["records"]]
