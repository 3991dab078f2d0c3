"""Offload without a GPU: the engine's own RPC servers stand in, each with memory of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.probe.sizes import ProbedSizes, measure_sizes, probe_devices, probe_sizes
from llmrun.engine.rpc import add_rpc_servers, split_server
from llmrun.errors import NetworkFailure, UsageError

from tests.support.archs import ARCHS, hyper, write_arch
from tests.support.rpc import free_port, rpc_server

N_CTX = 512
LAYERS = 6
SMALL = ContextParams(n_ctx=N_CTX, n_ubatch=32)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with rpc_server() as first, rpc_server() as second:
        yield first, second


@pytest.fixture(scope="module")
def one(servers: tuple[str, str]) -> tuple[str]:
    return (servers[0],)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arch(tmp_path_factory.mktemp("rpc") / "m.gguf", "llama", n_layer=LAYERS, n_vocab=4096)


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arch(tmp_path_factory.mktemp("rpc") / "e.gguf", "qwen3moe", n_layer=LAYERS)


@contextmanager
def listener(answer: bytes) -> Iterator[str]:
    """A server that reads something, says `answer` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as waiting:

        def serve() -> None:
            connection, _ = waiting.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{waiting.getsockname()[1]}"
        thread.join()


def dry(path: Path, rpc: tuple[str, ...], **params: Any) -> ProbedSizes:
    return probe_sizes([path], ModelParams("", rpc=rpc, **params), SMALL)


def real(path: Path, rpc: tuple[str, ...], **params: Any) -> ProbedSizes:
    return measure_sizes([path], ModelParams("", rpc=rpc, use_mmap=False, **params), SMALL)


def kv_bytes(layers: int) -> int:
    h = hyper("llama")
    return N_CTX * layers * 2 * h.n_head_kv * h.head_size * 2


def test_servers_are_devices(servers: tuple[str, str]) -> None:
    names = {device.name: device for device in probe_devices(servers)}
    assert next(iter(names)) == "CPU"
    for name, server in zip(("RPC0", "RPC1"), servers, strict=True):
        assert names[name].kind == "gpu"
        assert names[name].description == server
        assert names[name].total_bytes > 0


@pytest.mark.parametrize(
    ("gpu_layers", "on_gpu"), [(0, 0), (1, 0), (LAYERS // 2, LAYERS // 2 - 1), ("all", LAYERS)]
)
def test_layers_and_their_cache_move(llama: Path, one: tuple[str], gpu_layers: Any, on_gpu: int) -> None:
    """The output is the layer after the last, so one offloaded layer is the output alone."""
    found = dry(llama, one, gpu_layers=gpu_layers)
    assert found == real(llama, one, gpu_layers=gpu_layers)
    assert found.on("RPC0").kv_bytes == kv_bytes(on_gpu)
    assert found.on("CPU").kv_bytes == kv_bytes(LAYERS - on_gpu)
    output = ("RPC0",) if gpu_layers else ("CPU",)
    assert found.layer_devices == ("CPU",) * (LAYERS - on_gpu) + ("RPC0",) * on_gpu + output


def test_the_input_embedding_stays(llama: Path, one: tuple[str]) -> None:
    h = hyper("llama")
    found = dry(llama, one, gpu_layers="all")
    assert found.on("CPU").weights_bytes == 4096 * h.n_embd * 4
    assert found.on("RPC0").weights_bytes == found.on("RPC0").buffer_bytes > found.on("CPU").weights_bytes


def test_a_tied_embedding_is_copied(tmp_path: Path, one: tuple[str]) -> None:
    path = write_arch(tmp_path / "m.gguf", "llama", tied=True)
    h = hyper("llama")
    found = dry(path, one, gpu_layers=1)
    assert found.on("RPC0").weights_bytes == (h.n_vocab + 1) * h.n_embd * 4  # and the output's norm
    assert found == real(path, one, gpu_layers=1)


def test_the_cache_can_stay(llama: Path, one: tuple[str]) -> None:
    params = ContextParams(n_ctx=N_CTX, n_ubatch=32, offload_kqv=False)
    found = probe_sizes([llama], ModelParams("", rpc=one, gpu_layers="all"), params)
    assert (found.on("RPC0").kv_bytes, found.on("CPU").kv_bytes) == (0, kv_bytes(LAYERS))


@pytest.mark.parametrize(("split", "first"), [((1.0, 1.0), 4), ((3.0, 1.0), 6), ((0.0, 1.0), 0), ((1.0,), 7)])
def test_shares_of_two_gpus(
    llama: Path, servers: tuple[str, str], split: tuple[float, ...], first: int
) -> None:
    """Layer i of n offloaded ones goes to the first GPU whose summed share is above i / n."""
    for sizes in (dry, real):
        found = sizes(llama, servers, gpu_layers="all", tensor_split=split)
        assert found.layer_devices == ("RPC0",) * first + ("RPC1",) * (LAYERS + 1 - first)
        assert found.on("RPC0").kv_bytes == kv_bytes(min(first, LAYERS))
        assert found.on("RPC1").kv_bytes == kv_bytes(LAYERS - min(first, LAYERS))


@pytest.mark.parametrize("arch", ["llama", "gemma3n", "falcon-h1"])
@pytest.mark.parametrize("gpu_layers", [4, "all"])
def test_two_gpus(tmp_path: Path, servers: tuple[str, str], arch: str, gpu_layers: Any) -> None:
    """With all layers on them batches are pipelined, and inputs kept in several copies."""
    path = write_arch(tmp_path / "m.gguf", arch, n_layer=max(LAYERS, hyper(arch).n_layer))
    found = dry(path, servers, gpu_layers=gpu_layers)
    assert found == real(path, servers, gpu_layers=gpu_layers)
    assert found.on("RPC0").weights_bytes > 0 < found.on("RPC1").weights_bytes


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("n_cpu_moe", [1, 3])
def test_two_gpus_without_all_experts(
    tmp_path: Path, servers: tuple[str, str], arch: str, n_cpu_moe: int
) -> None:
    """Then nothing is pipelined, but a dry run still miscounts what one GPU hands to the other."""
    path = write_arch(tmp_path / "m.gguf", arch, n_layer=LAYERS)
    found = dry(path, servers, gpu_layers="all", n_cpu_moe=n_cpu_moe)
    assert found == real(path, servers, gpu_layers="all", n_cpu_moe=n_cpu_moe)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("gpu_layers", [3, "all"])
@pytest.mark.parametrize("n_servers", [1, 2])
def test_every_architecture(
    tmp_path: Path, servers: tuple[str, str], arch: str, gpu_layers: Any, n_servers: int
) -> None:
    path = write_arch(tmp_path / "m.gguf", arch, n_layer=max(LAYERS, hyper(arch).n_layer))
    model = ModelParams("", rpc=servers[:n_servers], gpu_layers=gpu_layers, use_mmap=False)
    for params in (
        ContextParams(n_ctx=1024),
        ContextParams(n_ctx=512, n_ubatch=32, n_seq=3, kv_unified=False, flash_attn="off"),
    ):
        assert probe_sizes([path], model, params) == measure_sizes([path], model, params)


def test_the_main_gpu_takes_all(llama: Path, servers: tuple[str, str]) -> None:
    found = real(llama, servers, gpu_layers="all", main_gpu=1)
    assert found == dry(llama, servers, gpu_layers="all", main_gpu=1)
    assert set(found.layer_devices) == {"RPC1"}
    assert found.on("RPC0").weights_bytes == 0


@pytest.mark.parametrize(
    ("params", "layers"),
    [
        ({"cpu_moe": True}, LAYERS),
        ({"n_cpu_moe": 2}, 2),
        ({"override_tensor": ((r"blk\.[0-2]\.ffn_.*_exps", "CPU"),)}, 3),
        ({"cpu_moe": True, "override_tensor": ((r"blk\.[01]\.ffn_.*_exps", "RPC0"),)}, LAYERS - 2),
    ],
    ids=["all", "of two layers", "by name", "the user's own first"],
)
def test_experts_stay_on_the_cpu(moe: Path, one: tuple[str], params: dict[str, Any], layers: int) -> None:
    if "override_tensor" in params:
        rules = params["override_tensor"]
        named = tuple((p, name if name == "CPU" else f"RPC0[{one[0]}]") for p, name in rules)
        params = params | {"override_tensor": named}
    h = hyper("qwen3moe")
    experts = 3 * h.n_embd * h.n_ff_exp * h.n_expert * 4
    base = dry(moe, one, gpu_layers="all")
    found = dry(moe, one, gpu_layers="all", **params)
    assert found.on("CPU").weights_bytes - base.on("CPU").weights_bytes == layers * experts
    assert base.on("RPC0").weights_bytes - found.on("RPC0").weights_bytes == layers * experts
    assert found.on("RPC0").kv_bytes == base.on("RPC0").kv_bytes
    assert found == real(moe, one, gpu_layers="all", **params)


@pytest.mark.parametrize(
    "params",
    [
        {"tensor_split": (1.0, 1.0, 1.0)},
        {"tensor_split": (0.0, 0.0)},
        {"tensor_split": (-1.0, 2.0)},
        {"main_gpu": 2},
        {"main_gpu": 0, "tensor_split": (1.0, 1.0)},
        {"override_tensor": (("ffn", "CUDA0"),)},
        {"override_tensor": (("ffn(", "CPU"),)},
        {"override_tensor": (("(?<=ffn)x", "CPU"),)},
    ],
    ids=str,
)
def test_what_cannot_be(llama: Path, servers: tuple[str, str], params: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        dry(llama, servers, gpu_layers="all", **params)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1"])
def test_what_is_no_server(text: str) -> None:
    with pytest.raises(UsageError):
        split_server(text)


def test_hosts_and_ports() -> None:
    assert split_server("10.0.0.2:50052") == ("10.0.0.2", 50052)


def test_nobody_listens() -> None:
    with free_port() as port, pytest.raises(NetworkFailure, match="refused"):
        probe_devices((f"127.0.0.1:{port}",))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"])
def test_another_kind_of_server(answer: bytes) -> None:
    with listener(answer) as server, pytest.raises(NetworkFailure, match="no RPC server"):
        add_rpc_servers([server])


def test_a_server_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts nobody else while it serves a client."""
    monkeypatch.setattr("llmrun.engine.rpc._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(NetworkFailure, match="does not answer") as failure:
            add_rpc_servers([f"127.0.0.1:{silent.getsockname()[1]}"])
        assert "one client" in failure.value.hint
