"""Layers on a GPU, for which the engine's own RPC server stands in: where the cache lies, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli import Cli, Ended
from tests.support.models import gemma_path
from tests.support.rpc import rpc_server

N_LAYERS = 31  # of SmolLM2, the output among them
KV_BYTES = 30 * 2048 * 768  # layers x tokens x bytes
REQUEST = ("run", "smollm2-135m", "Hi", "-n", "2", "--temp", "0", "-c", "2048", "--json")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rpc_server() as address:
        yield address


def run(cli: Cli, *words: str) -> Ended:
    """In a process of its own: a library keeps the servers it was told of."""
    return cli(*REQUEST, *words)


def document(cli: Cli, *words: str) -> dict[str, Any]:
    ended = run(cli, *words)
    assert ended.status == 0, ended.err
    assert ended.document["text"]
    return ended.document


def kv_bytes(found: dict[str, Any]) -> dict[str, int]:
    return {device["device"]: device["allocated_bytes"] for device in found["kv"]["devices"]}


@pytest.mark.parametrize(("layers", "on_gpu"), [("0", 0), ("16", 15), ("all", 30), ("auto", 30)])
def test_the_cache_lies_with_its_layers(cli: Cli, server: str, layers: str, on_gpu: int) -> None:
    found = document(cli, "--rpc", server, "-ngl", layers)
    expected = {"CPU": KV_BYTES * (30 - on_gpu) // 30, "RPC0": KV_BYTES * on_gpu // 30}
    assert kv_bytes(found) == {name: size for name, size in expected.items() if size}
    settings = found["settings"]
    assert str(settings["n_gpu_layers"]) == layers
    assert settings["n_gpu_layers_offloaded"] == (on_gpu + 1 if on_gpu else 0)
    assert (settings["offload"] is None) == (layers != "auto")


def test_auto_takes_as_many_layers_as_fit(cli: Cli, server: str) -> None:
    found = document(cli, "--rpc", server, "--device", "RPC0=90MiB", "--reserve", "0")
    settings = found["settings"]
    layers = settings["n_gpu_layers_offloaded"]
    assert 0 < layers < N_LAYERS
    assert (settings["n_gpu_layers"], settings["n_ctx"]) == ("auto", 2048)
    assert settings["offload"] == {
        "kind": "layers",
        "devices": ["RPC0"],
        "n_gpu_layers": layers,
        "n_layers": N_LAYERS,
        "n_cpu_moe": 0,
        "n_ctx": 2048,
        "ctx_shrunk": False,
    }
    assert kv_bytes(found)["RPC0"] == KV_BYTES * (layers - 1) // 30


def test_a_plan_is_told_in_one_line(cli: Cli, server: str) -> None:
    ended = cli(*REQUEST[:-1], "--rpc", server, "-v")
    assert ended.status == 0
    (line,) = [line for line in ended.err.splitlines() if "offload: " in line]
    assert "all 31 layers" in line
    assert "RPC0" in line


def test_two_servers_share_as_told(cli: Cli, server: str) -> None:
    with rpc_server() as other:
        shared = document(cli, "--rpc", server, "--rpc", other, "--tensor-split", "3,1")
        one = document(cli, "--rpc", f"{server},{other}", "--main-gpu", "1")
    first, second = kv_bytes(shared)["RPC0"], kv_bytes(shared)["RPC1"]
    assert first + second == KV_BYTES
    assert first / second == pytest.approx(3, rel=0.35)
    assert kv_bytes(one) == {"RPC1": KV_BYTES}


def test_tensors_go_where_a_pattern_says(cli: Cli, server: str) -> None:
    rule = ("--override-tensor", r"ffn_.*=CPU")
    found = cli("vram", "smollm2-135m", "--rpc", server, "-ngl", "all", *rule, "--exact", "--json")
    assert found.status == 0, found.err
    cpu, gpu = found.document["devices"]
    assert 0 < gpu["weights_bytes"] < cpu["weights_bytes"]
    assert document(cli, "--rpc", server, "-ngl", "all", *rule)["kv"]["devices"][0]["device"] == "RPC0"


def test_what_does_not_fit_is_refused_unless_it_is_forced(cli: Cli, server: str) -> None:
    words = ("--rpc", server, "-ngl", "all", "--device", "RPC0=1MiB")
    ended = run(cli, *words)
    error = ended.document
    assert (ended.status, error["code"]) == (5, "does_not_fit")
    assert "RPC0" in error["message"]
    assert "1.00 MiB" in error["message"]
    assert "-ngl 0" in error["hint"]
    assert kv_bytes(document(cli, *words, "--force")) == {"RPC0": KV_BYTES}


def test_chat_plans_as_run_does(cli: Cli, server: str) -> None:
    words = ("chat", "smollm2-135m", "--rpc", server, "-c", "2048", "-n", "2")
    ended = cli(*words, "-ngl", "all", "--device", "RPC0=1MiB", stdin=b"Hi")
    assert (ended.status, ended.out) == (5, b"")
    assert cli(*words, "--device", "RPC0=0", stdin=b"Hi").status == 0


@pytest.mark.parametrize(
    "words", [("--device", "GPU7=1GiB"), ("--device", "CPU"), ("--reserve", "much"), ("--main-gpu", "3")]
)
def test_what_is_not_there_is_a_wrong_command_line(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli.here(*REQUEST, *words).status == 2


@pytest.mark.parametrize(("given", "asked"), [("99", 99), ("-1", "all"), ("all", "all")])
def test_layers_without_a_gpu(cli: Cli, given: str, asked: object) -> None:
    """One warning and both numbers, or an error where that is wanted."""
    found = cli.here(*REQUEST, "-ngl", given)
    assert found.status == 0, found.err
    assert found.err.count("warning: ") == found.err.count("\n") == 1
    settings = found.document["settings"]
    assert (settings["n_gpu_layers"], settings["n_gpu_layers_offloaded"]) == (asked, 0)
    for words in (REQUEST, ("vram", "smollm2-135m", "--json")):
        strict = cli.here(*words, "-ngl", given, "--strict")
        assert (strict.status, strict.document["code"]) == (2, "usage")
        assert f"-ngl {asked}" in strict.document["message"]
        assert cli.here(*words, "-ngl", "0", "--strict").status == 0
    estimate = cli.here("vram", "smollm2-135m", "--json", "-ngl", given)
    assert (estimate.status, estimate.document["settings"]["n_gpu_layers"]) == (0, 0)
    assert estimate.err.count("warning: ") == 1


@pytest.mark.parametrize("layers", ["7", "all"])
def test_the_cache_of_each_device_is_told_to_the_byte(cli: Cli, server: str, layers: str) -> None:
    """Window and full layers on three devices, in sizes that the engine's log rounds."""
    shape = ("-c", "300", "-ub", "100", "--kv-type", "q8_0", "-fa", "on")
    with rpc_server() as other:
        words = ("--rpc", server, "--rpc", other, "-ts", "2,1", "-ngl", layers, *shape)
        ran = cli("run", gemma_path(), "Hi", "--raw", "-n", "1", "--json", *words)
        exact = cli("vram", gemma_path(), "--exact", "--json", *words)
    assert (ran.status, exact.status) == (0, 0), ran.err + exact.err
    expected = {d["name"]: d["kv_bytes"] for d in exact.document["devices"] if d["kv_bytes"]}
    assert kv_bytes(ran.document) == expected
    assert len(expected) == (3 if layers == "7" else 2)
    assert sum(expected.values()) % 34 == 0
