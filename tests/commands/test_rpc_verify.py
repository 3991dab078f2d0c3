"""`llmrun vram --verify` with layers on GPUs, for which the engine's own RPC servers stand in.

What the formula and the engine's dry run predict is what a real load takes, on each device and in each
bucket. Compute is the dry run's to know; the formula models it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.archs import hyper, write_arch
from tests.support.cli import Cli
from tests.support.rpc import rpc_server

FORMULA = ("weights_bytes", "kv_bytes", "recurrent_bytes", "output_bytes")
BUCKETS = (*FORMULA, "repack_bytes", "compute_bytes", "sum_bytes")
LAYERS = 6
SMOLLM2_LAYERS = 30
SMOLLM2_LAYER_KV_BYTES = 512 * 768  # a context of 512

Devices = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with rpc_server() as first, rpc_server() as second:
        yield first, second


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "moe.gguf"
    return write_arch(path, "qwen3moe", vocabulary=True, n_layer=LAYERS)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers of six keep a window, which is shorter than the context."""
    path = tmp_path_factory.mktemp("verify") / "window.gguf"
    return write_arch(path, "gemma3", vocabulary=True, n_layer=LAYERS)


def verified(cli: Cli, model: Path | str, servers: tuple[str, ...], *words: str) -> Devices:
    """Measured bytes by device, after they were compared with both predictions."""
    rpc = [word for server in servers for word in ("--rpc", server)]
    ended = cli.here("vram", model, *rpc, "-c", "512", "--verify", "--json", *words)
    assert ended.status == 0, ended.err
    document: dict[str, Any] = ended.document
    for device in document["verified"]:
        formula, engine, measured = (device[how] for how in ("formula", "engine", "measured"))
        for bucket in BUCKETS:
            assert engine[bucket] == measured[bucket], (device["name"], bucket)
        for bucket in FORMULA:
            assert formula[bucket] == measured[bucket], (device["name"], bucket)
    found = {device["name"]: device["measured"] for device in document["verified"]}
    # the table of devices shows the same
    assert [device["name"] for device in document["devices"]] == list(found)
    for device in document["devices"]:
        assert {name: device[name] for name in BUCKETS} == found[device["name"]]
    assert {"CPU", f"RPC{len(servers) - 1}"} <= found.keys() <= {"CPU", "RPC0", "RPC1"}
    return found


def on(found: Devices, bucket: str) -> list[int]:
    return [buckets[bucket] for buckets in found.values()]


class TestOneServer:
    """With N layers offloaded, N - 1 have their cache there: the output is the layer after the last."""

    @pytest.mark.parametrize(
        ("layers", "with_cache"),
        [
            ("0", 0),
            pytest.param("1", 0, marks=pytest.mark.slow),
            ("15", 14),
            pytest.param("all", SMOLLM2_LAYERS, marks=pytest.mark.slow),
            pytest.param("auto", SMOLLM2_LAYERS, marks=pytest.mark.slow),
        ],
    )
    def test_smollm2(self, cli: Cli, servers: tuple[str, str], layers: str, with_cache: int) -> None:
        found = verified(cli, "smollm2-135m", servers[:1], "-ngl", layers)
        assert on(found, "kv_bytes") == [
            (SMOLLM2_LAYERS - with_cache) * SMOLLM2_LAYER_KV_BYTES,
            with_cache * SMOLLM2_LAYER_KV_BYTES,
        ]
        assert (found["RPC0"]["weights_bytes"] > 0) == (layers != "0")

    @pytest.mark.parametrize(
        ("layers", "with_cache"),
        [
            pytest.param("0", 0, marks=pytest.mark.slow),
            pytest.param("1", 0, marks=pytest.mark.slow),
            ("3", 2),
            ("all", LAYERS),
            pytest.param("auto", LAYERS, marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.parametrize("kind", ["moe", "windowed"])
    def test_tiny(
        self,
        cli: Cli,
        servers: tuple[str, str],
        request: pytest.FixtureRequest,
        kind: str,
        layers: str,
        with_cache: int,
    ) -> None:
        found = verified(cli, request.getfixturevalue(kind), servers[:1], "-ngl", layers)
        assert (found["RPC0"]["weights_bytes"] > 0) == (layers != "0")
        cpu, gpu = on(found, "kv_bytes")
        assert (cpu == 0, gpu == 0) == (with_cache == LAYERS, with_cache == 0)
        if kind == "moe":
            assert gpu * (LAYERS - with_cache) == cpu * with_cache

    def test_a_window_shorter_than_the_context(
        self, cli: Cli, servers: tuple[str, str], windowed: Path
    ) -> None:
        """The one layer that sees everything is the last of six."""
        words = ("-ub", "32", "-ngl", "2")
        pruned = verified(cli, windowed, servers[:1], *words)
        full = verified(cli, windowed, servers[:1], *words, "--swa-full")
        assert pruned["RPC0"]["kv_bytes"] == full["RPC0"]["kv_bytes"]  # the full one alone
        assert 0 < pruned["CPU"]["kv_bytes"] < full["CPU"]["kv_bytes"]

    @pytest.mark.parametrize("experts", [(), ("--cpu-moe",)])
    def test_attention_beside_a_cache_in_main_memory(
        self, cli: Cli, servers: tuple[str, str], moe: Path, experts: tuple[str, ...]
    ) -> None:
        """Without flash attention the CPU has the scores: the larger the context, the more."""
        words = ("--no-kv-offload", *experts)
        fused = verified(cli, moe, servers[:1], *words, "-fa", "on")
        whole = verified(cli, moe, servers[:1], *words, "-fa", "off")
        assert whole["CPU"]["compute_bytes"] > fused["CPU"]["compute_bytes"]
        assert whole["RPC0"]["compute_bytes"] < fused["RPC0"]["compute_bytes"]

    def test_auto_chooses_some_layers(self, cli: Cli, servers: tuple[str, str]) -> None:
        words = ("--device", "RPC0=90MiB", "--reserve", "0", "-c", "2048")
        found = verified(cli, "smollm2-135m", servers[:1], *words)
        assert 0 < found["RPC0"]["kv_bytes"] < SMOLLM2_LAYERS * 4 * SMOLLM2_LAYER_KV_BYTES
        assert found["RPC0"]["sum_bytes"] <= 90 << 20


@pytest.mark.parametrize("arch", ["qwen3next", pytest.param("mamba2", marks=pytest.mark.slow)])
def test_a_state_goes_where_the_cache_goes(
    cli: Cli, servers: tuple[str, str], tmp_path: Path, arch: str
) -> None:
    path = write_arch(tmp_path / "state.gguf", arch, vocabulary=True)
    there = verified(cli, path, servers[:1], "-ngl", "all")
    here = verified(cli, path, servers[:1], "-ngl", "all", "--no-kv-offload")
    assert on(there, "recurrent_bytes") == on(here, "recurrent_bytes")[::-1] != [0, 0]
    assert on(there, "kv_bytes") == on(here, "kv_bytes")[::-1]


class TestExpertsOnTheCpu:
    EXPERTS_BYTES = 3 * hyper("qwen3moe").n_embd * hyper("qwen3moe").n_ff_exp * hyper("qwen3moe").n_expert * 4

    @pytest.mark.parametrize(
        ("words", "layers"),
        [(("--cpu-moe",), LAYERS), (("--n-cpu-moe", "2"), 2), (("--n-cpu-moe", "0"), 0)],
        ids=str,
    )
    @pytest.mark.parametrize("n_servers", [1, 2])
    def test_of_so_many_layers(
        self,
        cli: Cli,
        servers: tuple[str, str],
        moe: Path,
        words: tuple[str, ...],
        layers: int,
        n_servers: int,
    ) -> None:
        found = verified(cli, moe, servers[:n_servers], "-ngl", "all", *words)
        embedding_bytes = hyper("qwen3moe").n_vocab * hyper("qwen3moe").n_embd * 4
        assert found["CPU"]["weights_bytes"] == embedding_bytes + layers * self.EXPERTS_BYTES
        assert found["CPU"]["kv_bytes"] == 0

    def test_below_the_layers_on_the_gpu(self, cli: Cli, servers: tuple[str, str], moe: Path) -> None:
        """Three of six layers are there; the experts of the first four stay, so that one layer is split."""
        some = verified(cli, moe, servers[:1], "-ngl", "4", "--n-cpu-moe", "4")
        none = verified(cli, moe, servers[:1], "-ngl", "4")
        assert none["RPC0"]["weights_bytes"] - some["RPC0"]["weights_bytes"] == self.EXPERTS_BYTES
        assert none["RPC0"]["kv_bytes"] == some["RPC0"]["kv_bytes"]

    def test_auto_prefers_them_to_fewer_layers(self, cli: Cli, servers: tuple[str, str], moe: Path) -> None:
        words = ("--device", "RPC0=6MiB", "--reserve", "0")
        found = verified(cli, moe, servers[:1], *words)
        assert found["RPC0"]["kv_bytes"] > 0
        assert found["CPU"]["kv_bytes"] == 0
        assert found["CPU"]["weights_bytes"] > self.EXPERTS_BYTES


class TestTensorsByName:
    """Layers torn apart: their matrices, or all that comes with them, elsewhere than the rest."""

    @pytest.mark.parametrize("rule", ["attn_=CPU", pytest.param("_norm=CPU", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("kind", ["windowed", pytest.param("moe", marks=pytest.mark.slow)])
    def test_that_stay_on_the_cpu(
        self, cli: Cli, servers: tuple[str, str], request: pytest.FixtureRequest, kind: str, rule: str
    ) -> None:
        words = ("-ngl", "all", "--override-tensor", rule)
        found = verified(cli, request.getfixturevalue(kind), servers[:1], *words)
        assert found["CPU"]["compute_bytes"] > 0 == found["CPU"]["kv_bytes"]

    @pytest.mark.parametrize("device", ["CPU", pytest.param("RPC0", marks=pytest.mark.slow)])
    def test_an_embedding_that_is_the_output_as_well(
        self, cli: Cli, servers: tuple[str, str], windowed: Path, device: str
    ) -> None:
        """Both are one tensor where a rule puts them on one device."""
        buffer = f"RPC0[{servers[0]}]" if device == "RPC0" else device
        apart = verified(cli, windowed, servers[:1], "-ngl", "all")
        words = ("-ngl", "all", "--override-tensor", f"token_embd={buffer}")
        together = verified(cli, windowed, servers[:1], *words)
        embedding = sum(on(apart, "weights_bytes")) - sum(on(together, "weights_bytes"))
        assert (
            together[device]["weights_bytes"]
            >= embedding
            == hyper("gemma3").n_vocab * hyper("gemma3").n_embd * 4
        )


class TestTwoServers:
    @pytest.mark.parametrize(
        ("words", "first"),
        [
            (("--tensor-split", "3,1"), 6),
            pytest.param(("--tensor-split", "1,1"), 4, marks=pytest.mark.slow),
            (("--device", "RPC0=60MiB", "--device", "RPC1=20MiB", "--reserve", "0"), 6),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", ["moe", pytest.param("windowed", marks=pytest.mark.slow)])
    def test_layers_lie_where_they_were_sent(
        self,
        cli: Cli,
        servers: tuple[str, str],
        request: pytest.FixtureRequest,
        kind: str,
        words: tuple[str, ...],
        first: int,
    ) -> None:
        """Layer i of 7 goes to the first whose summed share is above i / 7; the seventh is the output."""
        found = verified(cli, request.getfixturevalue(kind), servers, "-ngl", "all", *words)
        _, one, two = on(found, "kv_bytes")
        assert one > 0
        assert (two == 0) == (first == LAYERS)
        if kind == "moe":
            assert one * (LAYERS - first) == two * first
        assert found["CPU"]["kv_bytes"] == 0

    @pytest.mark.parametrize("buffer", ["RPC1", pytest.param("RPC0[{}]", marks=pytest.mark.slow)])
    def test_tensors_sent_to_the_second_by_name(
        self, cli: Cli, servers: tuple[str, str], moe: Path, buffer: str
    ) -> None:
        """By the device's name, or by that of its buffers, which both servers number from 0."""
        words = ("-ngl", "all", "--tensor-split", "1,0")
        all_on_first = verified(cli, moe, servers, *words)
        apart = verified(cli, moe, servers, *words, "--override-tensor", f"exps={buffer.format(servers[1])}")
        moved = all_on_first["RPC0"]["weights_bytes"] - apart["RPC0"]["weights_bytes"]
        assert apart["RPC1"]["weights_bytes"] == moved == LAYERS * TestExpertsOnTheCpu.EXPERTS_BYTES

    def test_the_main_gpu_takes_all(self, cli: Cli, servers: tuple[str, str], moe: Path) -> None:
        found = verified(cli, moe, servers, "-ngl", "all", "--main-gpu", "1")
        assert found.get("RPC0", {"weights_bytes": 0})["weights_bytes"] == 0
        assert found["CPU"]["kv_bytes"] == 0 < found["RPC1"]["kv_bytes"]

    def test_the_default_split_follows_their_memory(
        self, cli: Cli, servers: tuple[str, str], moe: Path
    ) -> None:
        """Both are this machine, so each gets about half."""
        found = verified(cli, moe, servers, "-ngl", "all")
        assert on(found, "kv_bytes")[0] == 0
        assert min(on(found, "kv_bytes")[1:]) > 0
        assert min(on(found, "weights_bytes")) > 0

    @pytest.mark.slow
    @pytest.mark.parametrize("words", [(), ("--tensor-split", "3,1"), ("--tensor-split", "1,0")], ids=str)
    @pytest.mark.parametrize("layers", ["all", "15"])
    def test_smollm2(self, cli: Cli, servers: tuple[str, str], layers: str, words: tuple[str, ...]) -> None:
        found = verified(cli, "smollm2-135m", servers, "-ngl", layers, *words)
        assert sum(on(found, "kv_bytes")) == SMOLLM2_LAYERS * SMOLLM2_LAYER_KV_BYTES
        assert (found["CPU"]["kv_bytes"] == 0) == (layers == "all")
