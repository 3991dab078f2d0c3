"""`llmrun vram` as a program: its figures, exit codes, JSON, and terminals of any width."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from llmrun.units import format_bytes

from tests.support import bad
from tests.support.cli import Cli
from tests.support.gguf_writer import Value
from tests.support.models import smollm2_path
from tests.support.puppet import write_puppet

NUMBERS = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--params", "8e9")
HOST = ("--device", "CPU=64GiB")
NAME = "\x1b]0;owned\x07\x1b[31mred\r[bold]b[/bold]\u202egnp\x9b2J"
CONTROLS = [chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))] + ["\u202e"]
SETTINGS = {
    "n_ctx", "n_seq", "kv_unified", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "swa_full",
    "n_gpu_layers",
}  # fmt: skip
BUCKETS = {
    "weights_bytes", "repack_bytes", "kv_bytes", "recurrent_bytes", "compute_bytes", "output_bytes",
    "sum_bytes",
}  # fmt: skip
DEVICE = {"name", "kind", "free_bytes", "total_bytes", "fits"} | BUCKETS
TOP = {
    "schema", "model", "method", "settings", "devices", "totals", "kv_bytes_per_token", "verdict", "max_ctx",
    "max_gpu_layers",
}  # fmt: skip


def document(cli: Cli, *arguments: str | Path) -> dict[str, Any]:
    ended = cli.here("vram", *arguments, "--json")
    assert ended.status == 0, ended.err
    return ended.document


def test_json_has_all_the_contract_names(cli: Cli) -> None:
    found = document(cli, "smollm2-135m", *HOST, "--device", "GPU0=1GiB", "--reserve", "0")
    assert found["schema"] == "llmrun.vram/1"
    assert found.keys() >= TOP
    assert found["settings"].keys() == SETTINGS
    assert found["totals"].keys() == BUCKETS
    assert [device["name"] for device in found["devices"]] == ["CPU", "GPU0"]
    for device in found["devices"]:
        assert device.keys() == DEVICE
        assert device["sum_bytes"] == sum(device[name] for name in BUCKETS - {"sum_bytes"})
    for name in BUCKETS:
        assert found["totals"][name] == sum(device[name] for device in found["devices"])
    assert (found["method"], found["verdict"]) == ("formula", "fits")
    assert found["model"]["quant"] == "Q4_1"
    assert not {"steps", "verified"} & found.keys()


def test_every_field_is_documented(cli: Cli) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
    section = page.read_text().split("`llmrun.vram/1`")[1].split("\n## ")[0]
    found = document(cli, "smollm2-135m", "--explain", "--verify", "-c", "256")
    named = {*found, *found["settings"], *found["devices"][0], *found["grid"][0], *found["verified"][0]}
    assert [name for name in named if f"`{name}`" not in section and name != "schema"] == []


def test_every_flag_of_memory_counts(cli: Cli) -> None:
    flags = ["-c", "2048", "-b", "256", "-ub", "64", "-np", "2", "--no-kv-unified", "--kv-type", "q8_0"]
    settings = document(cli, smollm2_path(), *flags, "-ctv", "f16", "-fa", "on", "--swa-full")["settings"]
    assert settings == {
        "n_ctx": 2048,
        "n_seq": 2,
        "kv_unified": False,
        "n_batch": 256,
        "n_ubatch": 64,
        "type_k": "q8_0",
        "type_v": "f16",
        "flash_attn": "on",
        "swa_full": True,
        "n_gpu_layers": 0,
    }
    cache_on_host = document(cli, "smollm2-135m", *HOST, "--device", "GPU0=4G", "--no-kv-offload")["devices"]
    assert [device["kv_bytes"] > 0 for device in cache_on_host] == [True, False]


def test_a_profile_counts(cli: Cli) -> None:
    profile = document(cli, *NUMBERS, "--profile", "low-memory")
    assert profile["totals"]["kv_bytes"] < document(cli, *NUMBERS)["totals"]["kv_bytes"]


def test_layers_for_a_gpu_that_is_not_there(cli: Cli) -> None:
    ended = cli.here("vram", "smollm2-135m", "--json", "-ngl", "20", "--device", "CUDA0=0")
    if len(ended.document["devices"]) == 1:
        assert ended.document["settings"]["n_gpu_layers"] == 0
        assert "-ngl 20" in ended.err
    assert ended.status == 0


def test_a_window_beyond_the_trained_one(cli: Cli) -> None:
    ended = cli.here("vram", "smollm2-135m", "-c", "16384")
    assert ended.status == 0
    assert "8,192" in ended.err


def test_plain_numbers(cli: Cli) -> None:
    found = document(cli, *NUMBERS, "--quant", "q4_k_m", "-c", "20000")
    assert found["kv_bytes_per_token"] == 131_072
    text = cli.here("vram", *NUMBERS, "-c", "20000", "--explain").text
    assert "2,621,440,000 bytes" in text
    assert "128.0 KiB" in text


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("smollm2-135n",), 3),
        (("none.gguf",), 3),
        (NUMBERS[:-2], 2),
        (("smollm2-135m", *NUMBERS), 2),
        (("smollm2-135m", "--quant", "Q8_0"), 2),
        (("smollm2-135m", "--reserve", "much"), 2),
        (("smollm2-135m", "--device", "CUDA0"), 2),
        (("smollm2-135m", "--device", "GPU0=1G", "--exact"), 2),
        (("smollm2-135m", "-c", "many"), 2),
        (("smollm2-135m", "--temp", "1"), 2),
    ],
)
def test_what_cannot_be(cli: Cli, arguments: tuple[str, ...], status: int) -> None:
    ended = cli.here("vram", *arguments)
    assert (ended.status, ended.out) == (status, b"")
    assert ended.err.startswith("error: ")


@pytest.mark.parametrize("name", ["html", "blocks_2e31", "head_count_zero"])
def test_a_bad_file(cli: Cli, tmp_path: Path, name: str) -> None:
    path = bad.write_bad_files(tmp_path)[name]
    ended = cli.here("vram", path, "--json")
    assert (ended.status, ended.document["exit_code"]) == (4, 4)


def test_check_tells_by_its_exit_status(cli: Cli) -> None:
    fits = ("vram", "smollm2-135m", "--device", "CPU=2GiB")
    not_so = ("vram", "smollm2-135m", "--device", "CPU=1GiB")
    assert [cli.here(*command).status for command in (fits, not_so)] == [0, 0]
    assert cli.here(*fits, "--check").status == 0
    ended = cli.here(*not_so, "--check", "--json")
    assert (ended.status, ended.document["devices"][0]["fits"]) == (5, False)
    lacking = format_bytes(ended.document["devices"][0]["sum_bytes"])  # all but the reserve is taken
    assert f"CPU lacks {lacking}" in cli.here(*not_so).out.decode()
    assert cli.here(*not_so, "--check", "--reserve", "0").status == 0


def test_a_pipe_gets_plain_text(cli: Cli) -> None:
    ended = cli.here("vram", "smollm2-135m", *HOST, "--device", "GPU0=1GiB", "--reserve", "100MiB")
    assert (ended.status, ended.err) == (0, "")
    assert "\x1b" not in ended.text
    assert max(map(len, ended.text.splitlines())) <= 80
    assert "180.0 MiB" in ended.text
    assert "all 31 layers" in ended.text


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_wider_than_the_terminal(cli: Cli, columns: int) -> None:
    devices = [part for i in range(5) for part in ("--device", f"GPU{i}=2GiB")]
    arguments = ("vram", *NUMBERS, "-c", "131072", *devices, "--explain")
    with cli.terminal(*arguments, columns=columns, lines=200) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    text = " ".join(" ".join(lines).split())
    assert all(f"GPU{i}" in text for i in range(5))
    for word in ("weights", "KV cache", "compute", "output", "sum", "reserve", "free", "fits", "Textbook"):
        assert word in text


@pytest.mark.parametrize("columns", [40, 100])
def test_verified_on_a_terminal(cli: Cli, columns: int) -> None:
    with cli.terminal("vram", "smollm2-135m", "-c", "512", "--verify", columns=columns, lines=99) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    assert " ".join(lines).count(f"{512 * 23_040:,}") == 3


def test_names_in_a_file_are_harmless(cli: Cli, tmp_path: Path) -> None:
    extra: dict[str, Value] = {"general.name": NAME}
    path = write_puppet(tmp_path / "h.gguf", ["a"], extra=extra.items()).path
    ended = cli.here("vram", path, "--device", f"{NAME}=1GiB")
    assert ended.status == 0
    assert "[bold]b[/bold]" in ended.text
    assert not any(control in ended.text + ended.err for control in CONTROLS)


def test_the_bound_on_address_space_counts(cli: Cli) -> None:
    limited = ("sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh")
    ended = cli("vram", "smollm2-135m", "--json", wrapper=limited)
    assert ended.status == 0, ended.err
    (host,) = ended.document["devices"]
    assert host["free_bytes"] < host["total_bytes"] == 1_024_000_000
    assert not host["fits"]


def test_nothing_is_left_behind(cli: Cli, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    found = cli("vram", "smollm2-135m", "--exact", "--json", env={"TMPDIR": str(temporary)})
    assert (found.status, found.document["method"]) == (0, "engine")
    assert os.listdir(temporary) == []


def test_without_the_engine(cli: Cli, tmp_path: Path) -> None:
    """A broken library is one warning: the formula needs none."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "llama_cpp.py").write_text("raise OSError('no library')\n")
    ended = cli("vram", "smollm2-135m", "--json", env={"PYTHONPATH": str(broken)})
    assert ended.status == 0
    assert ended.err.startswith("warning: ")
    assert ended.err.count("\n") == 1
    assert [device["name"] for device in ended.document["devices"]] == ["CPU"]


PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "memory.md"
EXAMPLES = [line for line in PAGE.read_text().splitlines() if line.startswith("llmrun vram ")]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_page_run(cli: Cli, example: str) -> None:
    ended = cli.here(*shlex.split(example, comments=True)[1:])
    assert (ended.status, ended.err) == (0, "")


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) >= 9
    shown = {word for example in EXAMPLES for word in example.split() if word.startswith("--")}
    assert shown >= {"--exact", "--verify", "--device", "--check", "--json", "--layers"}
