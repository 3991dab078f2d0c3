"""The formula against the engine: bytes of weights, K/V, state and output are equal, compute is close.

Models of many architectures are loaded for real at several settings; those of full size are dry runs,
which tests/engine/test_archs.py shows to equal real loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.probe.account import account
from llmrun.engine.probe.sizes import DeviceSizes, probe_devices, probe_sizes
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.estimate import estimate
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.reports.vram import Buckets

from tests.support.archs import ARCHS, FULL_SIZE, hyper, write_arch, write_full_size
from tests.support.rpc import rpc_server

CPU = (DeviceInfo("CPU", "cpu", 1 << 50, 1 << 50),)
EXACT = ("weights_bytes", "kv_bytes", "recurrent_bytes", "output_bytes")

SETTINGS: dict[str, dict[str, Any]] = {
    "256": {"n_ctx": 256},
    "1024, ubatch 64": {"n_ctx": 1024, "n_ubatch": 64},
    "3 unified": {"n_ctx": 1024, "n_seq": 3},
    "3 split, f32": {"n_ctx": 1024, "n_seq": 3, "kv_unified": False, "type_k": "f32", "type_v": "f32"},
    "no flash attention": {"n_ctx": 1024, "flash_attn": "off"},
    "q8_0, whole window": {"n_ctx": 1024, "type_k": "q8_0", "type_v": "q8_0", "swa_full": True},
}
FULL_SETTINGS: dict[str, dict[str, Any]] = {
    "8k": {"n_ctx": 8192},
    "32k in 4": {"n_ctx": 32768, "n_seq": 4, "kv_unified": False},
    "32k, no flash attention": {"n_ctx": 32768, "flash_attn": "off"},
    "128k, ubatch 2048": {"n_ctx": 131072, "n_ubatch": 2048},
}

WriteArch = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where a CPU needs the engine's self-check, its verdict goes to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMRUN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> WriteArch:
    folder = tmp_path_factory.mktemp("archs")
    return lambda arch: write_arch(folder / f"{arch}.gguf", arch)


def by_engine(path: Path, *, dry: bool, **params: Any) -> DeviceSizes:
    context = ContextParams(**({"flash_attn": "on"} | params))
    return account([path], ModelParams(str(path), gpu_layers=0), context, dry=dry).on("CPU")


def by_formula(path: Path, devices: Sequence[DeviceInfo] = CPU, **params: Any) -> dict[str, Buckets]:
    report = estimate(memory_facts(read_header(path)), MemoryPlan(**params), devices)
    return {device.device.name: device.use for device in report.devices}


def exact_part(sizes: DeviceSizes | Buckets) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in EXACT}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("arch", ARCHS)
def test_formula_and_load(path_of: WriteArch, arch: str, setting: str) -> None:
    path, params = path_of(arch), SETTINGS[setting]
    engine, formula = by_engine(path, dry=False, **params), by_formula(path, **params)["CPU"]
    assert exact_part(formula) == exact_part(engine)
    assert formula.compute_bytes == pytest.approx(engine.compute_bytes, rel=0.25)


@pytest.mark.parametrize("setting", FULL_SETTINGS)
@pytest.mark.parametrize("name", FULL_SIZE)
def test_models_of_full_size(tmp_path: Path, name: str, setting: str) -> None:
    path, params = write_full_size(tmp_path / "m.gguf", name), FULL_SETTINGS[setting]
    engine, formula = by_engine(path, dry=True, **params), by_formula(path, **params)["CPU"]
    assert exact_part(formula) == exact_part(engine)
    assert formula.compute_bytes == pytest.approx(engine.compute_bytes, rel=0.1)


@pytest.mark.parametrize("gpu_layers", [0, 1, 3, 99])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3moe", "deepseek2", "falcon-h1", "glm4moe"])
def test_offload_to_a_gpu(path_of: WriteArch, server: str, arch: str, gpu_layers: int) -> None:
    """Weights, cache and state by device; the engine's own RPC server stands in for a GPU."""
    path = path_of(arch)
    model = ModelParams("", gpu_layers=gpu_layers, rpc=(server,))
    engine = probe_sizes([path], model, ContextParams(n_ctx=512, flash_attn="on"))
    devices = [DeviceInfo(d.name, d.kind, d.free_bytes, d.total_bytes) for d in probe_devices((server,))]
    formula = by_formula(path, devices, n_ctx=512, gpu_layers=gpu_layers)
    for device in ("CPU", "RPC0"):
        assert exact_part(formula.get(device, Buckets())) == exact_part(engine.on(device)), device


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rpc_server() as address:
        yield address


plans = st.fixed_dictionaries(
    {
        "n_ctx": st.integers(1, 5000),
        "n_batch": st.integers(1, 3000),
        "n_ubatch": st.integers(1, 600),
        "n_seq": st.integers(1, 5),
        "kv_unified": st.booleans(),
        "swa_full": st.booleans(),
        "flash_attn": st.sampled_from(["on", "off"]),
    }
)
shapes = st.fixed_dictionaries(
    {
        "n_layer": st.integers(3, 9),
        "n_head_kv": st.sampled_from([1, 2, 4]),
        "n_vocab": st.integers(100, 2000),
        "window": st.integers(1, 1500),
        "pattern": st.sampled_from([0, 2, 3, 5]),
        "d_state": st.sampled_from([16, 32, 64]),
        "interval": st.integers(2, 4),
    }
)


@pytest.mark.slow
@given(arch=st.sampled_from(ARCHS), plan=plans, shape=shapes)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_model_at_any_setting(
    tmp_path: Path, arch: str, plan: dict[str, Any], shape: dict[str, Any]
) -> None:
    shape |= {"n_shared": 0}
    if arch == "deepseek2":
        shape |= {"n_head_kv": 1}
    elif arch == "gemma3n":
        shape |= {"n_layer": 22, "pattern": 0}  # the last layers share the cache of earlier ones
    elif arch == "gemma4":  # the engine does not load one without a layer of full attention
        shape |= {"interval": min(shape["interval"], shape["n_layer"])}
    elif arch in ("qwen3next", "qwen35"):
        shape |= {"d_inner": hyper(arch).dt_rank * shape["d_state"]}
    path = write_arch(tmp_path / "m.gguf", arch, **shape)
    assert exact_part(by_formula(path, **plan)["CPU"]) == exact_part(by_engine(path, dry=True, **plan))


def test_all_buckets_are_compared() -> None:
    assert {f.name for f in fields(Buckets)} == {*EXACT, "compute_bytes", "repack_bytes"}
