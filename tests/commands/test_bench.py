"""`llmrun bench` from the command line: formats, streams, history, comparisons, pictures, refusals."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.loading import OpenRequest, open_model
from llmrun.bench.records import LLAMA_BENCH_KEYS, OWN_KEYS, SAMPLE_KEYS
from llmrun.errors import DoesNotFit

from tests.support.bad import OTHER_KINDS
from tests.support.cli import Cli, Ended, strict_json
from tests.support.puppet import write_puppet
from tests.support.rpc import rpc_server

SMALL = ("-p", "16", "-n", "4", "-r", "3")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def bench(cli: Cli, model: Path, *arguments: str | Path, small: bool = True) -> Ended:
    ended = cli.here("bench", model, *(SMALL if small else ()), *arguments)
    assert ended.status == 0, ended.err
    return ended


def records(ended: Ended) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ended.document["records"]
    return found


def test_a_table_on_a_pipe(cli: Cli, model: Path) -> None:
    lines = bench(cli, model).text.splitlines()
    assert lines[0].split("|")[1].strip() == "model"
    assert [line.split("|")[-3].strip() for line in lines[2:4]] == ["pp16", "tg4"]
    assert all("±" in line for line in lines[2:4])
    assert lines[-1].startswith("build: ")


def test_nothing_but_data_on_stdout(cli: Cli, model: Path) -> None:
    ended = bench(cli, model, "--json", "-v")
    assert strict_json(ended.text)["schema"] == "llmrun.bench/1"
    assert "llmrun" in ended.err


def test_an_array_as_llama_bench_writes_it(cli: Cli, model: Path) -> None:
    found = json.loads(bench(cli, model, "-o", "json").text)
    assert [list(record) for record in found] == [[*LLAMA_BENCH_KEYS, *SAMPLE_KEYS, *OWN_KEYS]] * 2
    assert [(r["n_prompt"], r["n_gen"], len(r["samples_ns"])) for r in found] == [(16, 0, 3), (0, 4, 3)]


def test_a_record_a_line(cli: Cli, model: Path) -> None:
    assert [record["test"] for record in bench(cli, model, "-o", "jsonl").records] == ["pp16", "tg4"]


def test_csv(cli: Cli, model: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(bench(cli, model, "-o", "csv").text)))
    assert [row["test"] for row in rows] == ["pp16", "tg4"]
    assert float(rows[0]["avg_ts"]) > 0


def test_everything_that_varies(cli: Cli, model: Path) -> None:
    counts = ("-p", "8", "-n", "2", "-pg", "4,2", "-d", "0-8+8", "-np", "1-2*2", "-r", "1", "--no-warmup")
    settings = ("-t", "1,2", "-ub", "8", "-b", "16", "-ctk", "f32", "-ctv", "f32", "-fa", "0")
    found = records(bench(cli, model, "--json", *counts, *settings, small=False))
    assert len(found) == 3 * 2 * 2 * 2
    expected = {
        "n_threads": {1, 2},
        "n_ubatch": {8},
        "n_batch": {16},
        "type_k": {"f32"},
        "type_v": {"f32"},
        "flash_attn": {0},
        "flash_attn_used": {"off"},
        "n_parallel": {1, 2},
        "n_depth": {0, 8},
    }
    assert {key: {record[key] for record in found} for key in expected} == expected


def test_several_models(cli: Cli, model: Path, tmp_path: Path) -> None:
    other = write_puppet(tmp_path / "other.gguf", ["x"]).path
    found = records(bench(cli, model, other, "--json", "-p", "8", "-n", "0", small=False))
    assert [Path(record["model_filename"]).name for record in found] == ["short.gguf", "other.gguf"]


def test_figures_beside_the_rate(cli: Cli, model: Path) -> None:
    prompt, output = records(bench(cli, model, "--json"))
    assert prompt["bandwidth_bytes_per_s"] is None
    assert output["bandwidth_bytes_per_s"] == pytest.approx(
        output["bytes_per_step"] * output["avg_ts"], rel=1e-3
    )
    share = output["bandwidth_bytes_per_s"] / output["machine_bandwidth_bytes_per_s"]
    assert output["bandwidth_fraction"] == pytest.approx(share, abs=1e-4)
    assert output["ceiling_ts"] > 0
    assert output["peak_rss_bytes"] > output["device_bytes"]["CPU"] > 0
    assert output["peak_device_bytes"] is None


def test_whole_requests_on_a_text(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("some words to read")
    *_, cold, cached = records(bench(cli, model, "--json", "--prompt", f"@{file}"))
    assert (cold["cache"], cached["cache"]) == ("cold", "cached")
    assert cold["n_evaluated"] == cold["n_prompt"] > cached["n_evaluated"] == 1
    for record in (cold, cached):
        ttft = record["ttft_ms"]
        parts = ("queue", "tokenize", "prefill", "first_sample")
        assert ttft["total"] == pytest.approx(sum(ttft[part] for part in parts), abs=0.01)
        assert record["total_ms"] > ttft["total"]
        assert record["itl_ms"]["p50"] <= record["itl_ms"]["p99"] <= record["itl_ms"]["max"]
        assert record["n_gen"] == 4


def test_a_benchmark_leaves_no_prefix_on_disk_and_no_request_in_the_log(cli: Cli, model: Path) -> None:
    bench(cli, model, "--prompt", "x")
    assert not cli.request_log
    assert not list(cli.cache.glob("**/*.snapshot"))


def test_layers_without_a_gpu_warn_once_and_say_what_came_of_it(cli: Cli, model: Path) -> None:
    ended = bench(cli, model, "--json", "-ngl", "99", "-np", "1,2")
    assert ended.err.count("-ngl 99") == 1
    assert {(r["n_gpu_layers"], r["n_gpu_layers_offloaded"]) for r in records(ended)} == {(99, 0)}


def test_device_memory_is_told_where_a_device_holds_layers(cli: Cli) -> None:
    with rpc_server() as address:
        ended = cli(
            "bench",
            "smollm2-135m",
            "--rpc",
            address,
            "-ngl",
            "all",
            "-p",
            "8",
            "-n",
            "2",
            "-r",
            "1",
            "--json",
        )
    assert ended.status == 0, ended.err
    output = records(ended)[1]
    (device,) = output["device_bytes"].keys() - {"CPU"}
    assert output["backends"] == "RPC"
    assert output["n_gpu_layers_offloaded"] == 31
    assert output["peak_device_bytes"] == output["device_bytes"][device] > 90_000_000
    assert output["bandwidth_bytes_per_s"] > 0
    assert output["bandwidth_fraction"] is None


def test_two_runs_are_compared(cli: Cli, model: Path) -> None:
    bench(cli, model, "--save", "before")
    bench(cli, model, "-p", "16", "-n", "0", "-r", "3", small=False)
    ended = cli.here("bench", "--compare", "before")
    assert ended.status == 0
    assert "pp16" in ended.text
    assert "tg4" not in ended.text
    document = cli.here("bench", "--compare", "before", "last", "--json").document
    (row,) = document["tests"]
    assert (document["schema"], document["only_first"]) == ("llmrun.bench_compare/1", 1)
    assert row["low"] <= row["ratio"] <= row["high"]
    assert (row["first_runs"], row["second_runs"], row["over_runs"]) == (1, 1, False)
    assert not row["difference_shown"]


def test_runs_of_one_name_are_compared_as_one_side(cli: Cli, model: Path) -> None:
    for _ in range(3):
        bench(cli, model, "-p", "16", "-n", "0", "-r", "1", "--save", "same", small=False)
    (row,) = cli.here("bench", "--compare", "same", "--json").document["tests"]
    assert (row["first_runs"], row["second_runs"], row["over_runs"]) == (3, 3, True)
    assert row["low"] <= 1 <= row["high"]
    assert "same: 3 runs" in cli.here("bench", "--compare", "same").text


def test_runs_without_a_common_test_are_told_apart(cli: Cli, model: Path) -> None:
    bench(cli, model, "-p", "8", "-n", "0", "-r", "1", "--save", "short", small=False)
    bench(cli, model, "-p", "16", "-n", "0", "-r", "1", "--save", "long", small=False)
    shown = cli.here("bench", "--compare", "short", "long").text
    assert "no test in common" in shown
    assert "ratio" not in shown


def test_a_run_is_no_different_from_itself(cli: Cli, model: Path) -> None:
    bench(cli, model, "--save", "a")
    shown = cli.here("bench", "--compare", "a", "a").text
    assert "no difference shown" in shown
    assert "not for how a run differs from the next" in " ".join(shown.split())


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_comparison_is_whole_at_any_width(cli: Cli, model: Path, columns: int) -> None:
    bench(cli, model, "--save", "a", "-q")
    (row, _) = cli.here("bench", "--compare", "a", "--json").document["tests"]
    with cli.terminal("bench", "--compare", "a", columns=columns, lines=60) as terminal:
        assert terminal.ended() == 0
        shown = " ".join(terminal.text.split())
        assert all(
            figure in shown for figure in ("pp16", f"{row['first']:.2f}", "1.000", "no difference shown")
        )
        assert max(len(line.rstrip()) for line in terminal.text.splitlines()) <= columns


def test_figures_of_settings_come_from_the_environment_too(cli: Cli, model: Path) -> None:
    ended = cli.here("bench", model, *SMALL, "--json", env={"LLMRUN_TYPE_K": "q8_0", "LLMRUN_THREADS": "1"})
    assert {(r["type_k"], r["n_threads"]) for r in records(ended)} == {("q8_0", 1)}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["-p", "x"], 2),
        (["-p", "0", "-n", "0"], 2),
        (["-n", "5-1"], 2),
        (["-pg", "3"], 2),
        (["-o", "xml"], 2),
        (["-t", "0"], 2),
        (["-ctk", "f17"], 2),
        (["-r", "0"], 2),
        (["--plot", "picture.gif"], 2),
        (["--plot", "picture.png"], 2),
        (["--plot", "/no/such/folder/p.png"], 2),
        (["--prompt", "@/no/such/file"], 2),
        (["--prompt", " \n"], 2),
        (["-fa", ","], 2),
        (["--save", ""], 2),
        (["--save", "a\nb"], 2),
        (["--save", "last"], 2),
        (["-p", "1-9999", "-d", "1-9999"], 2),
        (["-t", "1-500", "-b", "1-9999", "-ub", "1-9999", "-n", "0", "-p", "0", "--prompt", "x"], 2),
        (["/no/such.gguf"], 3),
    ],
)
def test_refusals_come_before_anything_is_measured(
    cli: Cli, model: Path, arguments: list[str], status: int
) -> None:
    ended = cli.here("bench", model, *arguments)
    assert (ended.status, ended.out) == (status, b"")
    assert not (cli.data_dir / "bench.jsonl").exists()


@pytest.mark.parametrize("kind", ["bert", "clip", "adapter"])
def test_what_generates_no_text_is_refused_before_others_are_measured(
    cli: Cli, model: Path, tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(OTHER_KINDS[kind])
    ended = cli.here("bench", model, other, *SMALL)
    assert (ended.status, ended.out) == (4, b"")
    assert not (cli.data_dir / "bench.jsonl").exists()


@pytest.mark.parametrize(
    ("output", "parse"), [("--json", strict_json), ("-ojson", json.loads), ("-omd", str)]
)
def test_a_run_that_fails_midway_shows_what_it_has(
    cli: Cli, model: Path, output: str, parse: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: OpenRequest, *rest: Any, **named: Any) -> Any:
        if request.sources.flags["n_parallel"] != "1":
            raise DoesNotFit("no room", "use a smaller -c")
        return open_model(request, *rest, **named)

    monkeypatch.setattr("llmrun.app.bench.run.open_model", full)
    ended = cli.here("bench", model, *SMALL, "-np", "1,2", output)
    assert ended.status == 5
    assert "smaller -p, -n, -d or -np" in ended.err
    found = parse(ended.text)
    if output == "--json":
        assert (found["complete"], found["error"]["exit_code"], len(found["records"])) == (False, 5, 2)
    assert "incomplete" in ended.text or output == "--json"


def test_two_formats_are_refused(cli: Cli, model: Path) -> None:
    ended = cli.here("bench", model, "-o", "csv", "--json")
    assert (ended.status, ended.document["code"]) == (2, "usage")


def test_an_array_is_one_also_where_nothing_was_measured(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise DoesNotFit("no room", "use a smaller -c")

    monkeypatch.setattr("llmrun.app.bench.run.open_model", full)
    ended = cli.here("bench", model, *SMALL, "-o", "json")
    assert (ended.status, json.loads(ended.text)) == (5, [])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        *(
            ["--compare", *rest]
            for rest in (["a"], ["a", "b", "c"], ["a", "-o", "csv"], ["a", "--prompt", "x"], ["a", "-p", "8"])
        ),
    ],
)
def test_nothing_to_do_is_a_usage_error(cli: Cli, arguments: list[str]) -> None:
    ended = cli.here("bench", *arguments)
    assert (ended.status, ended.out) == (2, b"")


def test_on_a_terminal_a_table_charts_and_a_verdict(cli: Cli, model: Path) -> None:
    with cli.terminal("bench", model, *SMALL, "-d", "0,64", columns=100, lines=60) as terminal:
        assert terminal.ended() == 0
        shown = " ".join(" ".join(terminal.display).split())
        assert "pp16 @ d64" in shown
        assert "prefill over depth" in shown
        assert "█" in shown
        assert "4 output tokens take" in shown


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal(cli: Cli, model: Path, columns: int) -> None:
    with cli.terminal("bench", model, *SMALL, "-q", columns=columns, lines=60) as terminal:
        assert terminal.ended() == 0
        lines = [line.rstrip() for line in terminal.text.splitlines()]
        assert any("tg4" in line for line in lines)
        assert max(map(len, lines)) <= columns


def test_a_picture_that_cannot_be_written_is_refused_beforehand(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.png").mkdir()
    ended = cli.here("bench", model, "-d", "0,8", "--plot", tmp_path / "p.png")
    assert (ended.status, ended.out) == (10, b"")


def test_without_matplotlib_a_picture_is_refused_with_the_way_to_get_it(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    ended = cli.here("bench", model, "-d", "0,8", "--plot", "p.png")
    assert ended.status == 2
    assert "llmrun[plot]" in ended.err


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="the extra `plot` is not installed")
@pytest.mark.parametrize(("name", "begin"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_a_picture(cli: Cli, model: Path, tmp_path: Path, name: str, begin: bytes) -> None:
    bench(cli, model, "-d", "0,32", "--plot", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)
