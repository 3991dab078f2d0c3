"""`llmrun estimate` as a program: the worked examples on screen, widths, JSON, a real measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli

FIRST = ("estimate", "-p", "1000", "-n", "300", "--prefill-rate", "2000", "--decode-rate", "40")
SECOND = ("estimate", "-p", "12000", "-n", "500", "--prefill-rate", "1500", "--decode-rate", "40")
MODEL = ("estimate", "smollm2-135m", "--prefill-rate", "400", "--decode-rate", "100")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(FIRST, ("0.5 s", "7.5 s", "8.0 s", "94%")), (SECOND, ("20.5 s", "39%", "12.5 s"))],
)
def test_the_worked_examples(cli: Cli, arguments: tuple[str, ...], shown: tuple[str, ...]) -> None:
    ended = cli.here(*arguments)
    assert (ended.status, ended.err) == (0, "")
    assert all(part in ended.text for part in shown)


def test_the_bandwidth_bound(cli: Cli) -> None:
    ended = cli.here("estimate", "--weights", "8GB", "--bandwidth", "400GB/s")
    assert "50.0 tok/s at most" in " ".join(ended.text.split())
    document = cli.here("estimate", "--weights", "8GB", "--bandwidth", "400GB/s", "--json").document
    assert document["ceiling"]["tokens_per_s"] == 50


def test_the_document(cli: Cli) -> None:
    document = cli.here(*FIRST, "--json").document
    assert document["schema"] == "llmrun.estimate/1"
    times = [document[f"{part}_ms"] for part in ("prefill", "decode", "total", "ttft")]
    assert times == [500, 7500, 8000, 500]
    assert document["prefill_share"] + document["decode_share"] == pytest.approx(1)
    assert [lever["kind"] for lever in document["levers"]] == [
        "prefix_cache", "half_retrieved", "quantization", "batch",
    ]  # fmt: skip


def levers(cli: Cli, *arguments: str) -> dict[str, Any]:
    """Levers of a document by kind."""
    return {lever["kind"]: lever for lever in cli.here(*arguments, "--json").document["levers"]}


def test_what_to_compare_with_is_up_to_the_user(cli: Cli) -> None:
    found = levers(cli, *MODEL, "-p", "1000", "--retrieved-tokens", "600", "--quant", "q2_k", "-np", "7")
    assert found["half_retrieved"]["value"] == "300"
    assert found["quantization"]["value"] == "Q2_K"
    assert (found["batch"]["value"], found["batch"]["requests"]) == ("7", 7)


def test_cached_tokens_are_not_evaluated(cli: Cli) -> None:
    document = cli.here(*FIRST, "--cached-tokens", "900", "--json").document
    assert (document["cached_tokens"], document["prefill_ms"]) == (900, 50)


def test_a_model_is_measured_under_a_profile(cli: Cli, model: Path) -> None:
    profile = cli.config_dir / "profiles" / "mine.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("n_ctx: 256\n")
    asked = ("estimate", str(model), "-p", "400", "-n", "4", "--from", "measure", "--json")
    rates = cli.here(*asked, "--profile", "mine").document["rates"]
    assert rates["prefill"]["source"] == rates["decode"]["source"] == "measured"
    assert max(point["depth"] for point in rates["decode"]["points"]) < 256
    assert cli.here(*asked, "--profile", "none").status == 2


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(cli: Cli, columns: int) -> None:
    texts = ("--text", "Hello there, this is a rather long sample of text.", "--text", "今天天气很好")
    with cli.terminal(*MODEL, *texts, columns=columns, lines=99) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    text = " ".join(" ".join(lines).split())
    for part in ("prefill", "decode", "total", "Bandwidth", "prefix cached", "requests at once", "(Han)"):
        assert part in text


def test_a_file_as_text_and_files_names_are_harmless(cli: Cli) -> None:
    name = "a\x1b[31mb.txt"
    (cli.folder / name).write_text("Hello there.")
    ended = cli.here(*MODEL, "--text", f"@{name}")
    assert ended.status == 0
    assert "\x1b" not in ended.text


def test_a_real_model_is_measured(cli: Cli) -> None:
    document = cli("estimate", "smollm2-135m", "-p", "64", "-n", "8", "--json").document
    assert document["rates"]["decode"]["source"] == "measured"
    assert document["rates"]["prefill"]["tokens_per_s"] > 0
    assert document["total_ms"] > 0


def test_real_requests_are_what_the_next_is_estimated_from(cli: Cli) -> None:
    run = cli.here("run", "smollm2-135m", "-n", "12", "--ignore-eos", "word " * 80)
    assert run.status == 0
    (record,) = cli.request_log
    document = cli.here("estimate", "smollm2-135m", "--from", "log", "--json").document
    assert document["rates"]["decode"]["source"] == "log"
    measured = record["timings"]["predicted_per_second"]
    assert document["rates"]["decode"]["tokens_per_s"] == pytest.approx(measured, rel=1e-3)  # ms are rounded


@pytest.mark.parametrize(
    "wrong",
    [
        ("--from", "nowhere"),
        ("--from", "bench"),
        ("--prefill-rate", "0"),
        ("--decode-rate", "nan"),
        ("--weights", "0"),
        ("--bandwidth", "fast"),
        ("-p", "10", "--cached-tokens", "11"),
        ("--text", "@missing.txt"),
        ("--text", ""),
        ("-p", "-1"),
        ("-n", "1000000001"),
        ("-np", "10001"),
    ],
)
def test_what_cannot_mean_anything_is_status_2(cli: Cli, wrong: tuple[str, ...]) -> None:
    assert cli.here("estimate", "smollm2-135m", *wrong).status == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("--weights", "8GB"),
        ("--bandwidth", "400GB/s"),
        ("--bandwidth", "400GB/s", "--prefill-rate", "100"),
        ("--prefill-rate", "1e-300", "--decode-rate", "1e300"),
    ],
)
def test_numbers_that_tell_nothing_are_status_2(cli: Cli, wrong: tuple[str, ...]) -> None:
    ended = cli.here("estimate", *wrong)
    assert (ended.status, ended.out) == (2, b"")


def test_the_largest_numbers_are_still_shown(cli: Cli) -> None:
    slow = ("--prefill-rate", "1e-6", "--decode-rate", "1e-6")
    ended = cli.here("estimate", "-p", "1000000000", "-n", "1000000000", "-np", "10000", *slow)
    assert (ended.status, " h " in ended.text) == (0, True)


def test_a_model_that_is_not_there_is_status_3(cli: Cli, tmp_path: Path) -> None:
    assert cli.here("estimate", str(tmp_path / "none.gguf")).status == 3


def test_it_says_how_rates_go_on_beyond_what_was_measured(cli: Cli, model: Path) -> None:
    counts = ("-p", "8", "-n", "2", "-r", "1", "-q")
    assert cli.here("bench", model, *counts).status == 0
    asked = ("estimate", model, "-p", "2000", "--from", "bench")
    assert "stay the same" in " ".join(cli.here(*asked).text.split())
    assert cli.here("bench", model, *counts, "-d", "256").status == 0
    said = " ".join(cli.here(*asked).text.split())
    assert "extrapolated" in said
    assert "stay the same" not in said
