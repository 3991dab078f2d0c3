"""The estimate as a whole: equal to the engine, devices there are and are not, plain numbers, bad files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.library.asking import answer
from llmrun.app.memory.devices import DeviceProbe
from llmrun.app.memory.host_memory import HostMemory
from llmrun.app.memory.vram import vram_report
from llmrun.app.memory.vram_request import Numbers, VramRequest
from llmrun.app.memory.vram_values import grid_contexts
from llmrun.app.settings import SettingSources
from llmrun.engine.bindings import Device
from llmrun.errors import DoesNotFit, EngineFailure, ModelNotFound, NetworkFailure, NotAModel, UsageError
from llmrun.reports.vram import DeviceUse, VramReport
from llmrun.units import GIB, MIB

from tests.support import bad
from tests.support.models import gemma_path, smollm2_path
from tests.support.rpc import rpc_server
from tests.support.tiny import Arch, write_tiny

EXACT = ("weights_bytes", "kv_bytes", "recurrent_bytes", "output_bytes")
LLAMA_8B = Numbers(layers=32, kv_heads=8, head_dim=128, params=8e9, quant="Q4_K_M")
CPU = Device("CPU", "a processor", "cpu", 1, 1)
GPU = Device("CUDA0", "a card", "gpu", 24 * GIB, 24 * GIB)
Start = Callable[[Sequence[str]], DeviceProbe]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"LLMRUN_{kind}_DIR", str(tmp_path / kind))


def seen(*devices: Device) -> Start:
    """A probe that finds these devices."""
    return lambda rpc: DeviceProbe(rpc, lambda _: devices)


def failing(error: Exception) -> Start:
    def probe(_: Sequence[str]) -> tuple[Device, ...]:
        raise error

    return lambda rpc: DeviceProbe(rpc, probe)


def report_of(
    model: Path | str | None = None,
    start: Start | None = None,
    flags: dict[str, Any] | None = None,
    **rest: Any,
) -> VramReport:
    """With 64 GiB of main memory, whatever this machine has; "CPU alone" unless `start` says otherwise."""
    request = VramRequest(
        SettingSources(flags or {}),
        None if model is None else str(model),
        **{"named": (("CPU", 64 * GIB),), **rest},
    )
    return answer(vram_report(request, start_probe=start or seen(CPU)))


def sizes(device: DeviceUse) -> dict[str, int]:
    return {name: getattr(device.use, name) for name in EXACT}


def on(report: VramReport, name: str) -> DeviceUse:
    return next(device for device in report.devices if device.name == name)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"n_ctx": "2000", "n_parallel": "3"},
    {"n_ctx": "4096", "n_parallel": "2", "kv_unified": "false", "kv_type": "q8_0", "swa_full": "true"},
    {"n_ctx": "1024", "flash_attn": "off", "n_ubatch": "64"},
]


@pytest.mark.parametrize("flags", SETTINGS)
@pytest.mark.parametrize("path", [smollm2_path, gemma_path])
def test_real_models_equal_the_engine(path: Callable[[], Path], flags: dict[str, Any]) -> None:
    formula, engine = report_of(path(), flags=flags), report_of(path(), flags=flags, exact=True)
    assert (formula.method, engine.method) == ("formula", "engine")
    assert sizes(formula.devices[0]) == sizes(engine.devices[0])
    wanted = {name: getattr(engine.settings, name) for name in ("n_ctx", "n_seq", "n_batch", "n_ubatch")}
    assert {name: getattr(formula.settings, name) for name in wanted} == wanted
    assert formula.totals.compute_bytes == pytest.approx(engine.totals.compute_bytes, rel=0.1)


@pytest.mark.parametrize("arch", ["mamba", "gemma3", "llama"])
def test_tiny_models_are_verified(tmp_path: Path, arch: Arch) -> None:
    path = write_tiny(tmp_path / "m.gguf", arch)
    report = report_of(path, flags={"n_ctx": "512", "n_parallel": "2"}, verify=True)
    (cpu,) = report.verified
    for name in EXACT:
        assert getattr(cpu.formula, name) == getattr(cpu.engine, name) == getattr(cpu.measured, name), name
    assert (cpu.measured.recurrent_bytes > 0) == (arch == "mamba")
    assert cpu.engine == cpu.measured == report.devices[0].use


@pytest.mark.slow
def test_smollm2_is_verified() -> None:
    (cpu,) = report_of(smollm2_path(), verify=True).verified
    assert cpu.engine == cpu.measured
    assert cpu.measured.kv_bytes == cpu.formula.kv_bytes == 180 * MIB
    assert cpu.measured.weights_bytes == cpu.formula.weights_bytes == 96_576_768


def test_smollm2() -> None:
    report = report_of("smollm2-135m")
    assert (report.verdict, report.fits, report.remedies) == ("fits", True, ())
    assert report.kv_bytes_per_token == 23_040
    assert (report.max_ctx, report.settings.n_ctx, report.n_layers) == (8192, 8192, 31)
    assert report.totals.kv_bytes == 180 * MIB
    assert [(c.n_ctx, c.kv_type, c.fits, c.offload) for c in report.grid] == [
        (n_ctx, kv_type, True, "none") for n_ctx in (4096, 8192) for kv_type in ("f16", "q8_0", "q4_0")
    ]
    assert report.grid[3].sum_bytes == report.totals.sum_bytes


def test_plain_numbers() -> None:
    report = report_of(numbers=LLAMA_8B, flags={"n_ctx": "20000"}, explain=True)
    assert report.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert report.settings.n_ctx == 20_224
    assert report.totals.kv_bytes == 131_072 * 20_224
    assert report.totals.weights_bytes == pytest.approx(8e9 * 4.89 / 8, rel=0.01)
    assert report.steps[0].total_bytes == 131_072 * 20_000
    assert report.steps[-1].total_bytes == report.totals.kv_bytes
    assert report.max_ctx > 300_000
    with pytest.raises(UsageError, match="Q9"):
        report_of(numbers=Numbers(32, 8, 128, 8e9, "Q9"))
    with pytest.raises(UsageError, match="--layers"):
        report_of(numbers=Numbers(0, 8, 128, 8e9, "Q8_0"))


def test_a_device_that_is_not_here() -> None:
    report = report_of(numbers=LLAMA_8B, named=(("CPU", 64 * GIB), ("GPU", 24 * GIB)))
    gpu = on(report, "GPU")
    assert (gpu.kind, gpu.free_bytes, gpu.fits, report.verdict) == ("gpu", 24 * GIB, True, "fits")
    assert report.settings.n_gpu_layers == report.max_gpu_layers == 33
    assert gpu.use.kv_bytes == report.totals.kv_bytes
    assert on(report, "CPU").use.kv_bytes == 0


def test_less_of_a_device_that_is_here() -> None:
    there = seen(CPU, GPU)
    whole = report_of(numbers=LLAMA_8B, start=there)
    part = report_of(numbers=LLAMA_8B, start=there, named=(("CPU", 64 * GIB), ("CUDA0", 4 * GIB)))
    without = report_of(numbers=LLAMA_8B, start=there, named=(("CPU", 64 * GIB), ("CUDA0", 0)))
    assert [r.settings.n_gpu_layers for r in (whole, without)] == [33, 0]
    assert 0 < part.settings.n_gpu_layers == part.max_gpu_layers < 33
    assert [d.name for d in without.devices] == ["CPU"]
    assert on(part, "CUDA0").total_bytes == 24 * GIB
    assert on(part, "CUDA0").use.sum_bytes + GIB <= 4 * GIB
    assert "part" in {cell.offload for cell in part.grid} <= {"part", "none"}  # borrowed caches grow, too


def test_the_reserve_is_left_free_on_every_device() -> None:
    named = (("CPU", 2 * GIB), ("GPU", 8 * GIB))
    layers = [
        report_of(numbers=LLAMA_8B, named=named, reserve_bytes=reserve).settings.n_gpu_layers
        for reserve in (0, GIB, 3 * GIB)
    ]
    assert layers == sorted(layers, reverse=True)
    assert layers[-1] < layers[0] == 33
    tight = report_of("smollm2-135m", named=(("CPU", GIB + 100 * MIB),))
    assert (tight.fits, report_of("smollm2-135m", named=(("CPU", GIB),), reserve_bytes=0).fits) == (
        False,
        True,
    )


def test_what_does_not_fit_has_ways_out() -> None:
    report = report_of(numbers=LLAMA_8B, named=(("CPU", 7 * GIB),), flags={"n_ctx": "65536"})
    assert (report.verdict, report.fits) == ("partial", False)
    assert {remedy.kind for remedy in report.remedies} >= {"context"}
    assert all(remedy.sum_bytes + GIB <= 7 * GIB for remedy in report.remedies)
    assert 0 < report.max_ctx < 65536
    hopeless = report_of(numbers=LLAMA_8B, named=(("CPU", GIB),))
    assert (hopeless.verdict, hopeless.max_ctx, hopeless.fits) == ("too_large", 0, False)


def test_the_longest_context_with_layers_of_its_own() -> None:
    named = (("CPU", 64 * GIB), ("GPU", 8 * GIB))
    auto = report_of(numbers=LLAMA_8B, named=named)
    fixed = report_of(numbers=LLAMA_8B, named=named, flags={"n_gpu_layers": "all"})
    assert auto.max_ctx == fixed.max_ctx
    assert fixed.max_ctx_auto is None
    assert auto.max_ctx_auto is not None
    assert auto.max_ctx_auto > auto.max_ctx > 0
    again = report_of(numbers=LLAMA_8B, named=named, flags={"n_ctx": str(auto.max_ctx_auto)})
    assert again.fits
    more = report_of(numbers=LLAMA_8B, named=named, flags={"n_ctx": str(auto.max_ctx_auto + 256)})
    assert not more.fits


def test_fixed_layers_stay() -> None:
    named = (("CPU", 64 * GIB), ("GPU", 4 * GIB))
    report = report_of(numbers=LLAMA_8B, named=named, flags={"n_gpu_layers": "all"})
    assert (report.settings.n_gpu_layers, report.verdict, report.fits) == (33, "partial", False)
    assert report_of(numbers=LLAMA_8B, named=named, flags={"n_gpu_layers": "7"}).settings.n_gpu_layers == 7


def test_without_flash_attention_quantised_values_are_refused() -> None:
    report = report_of("smollm2-135m", flags={"flash_attn": "off"})
    assert {cell.kv_type: cell.sum_bytes is None for cell in report.grid} == {
        "f16": False,
        "q8_0": True,
        "q4_0": True,
    }


def test_a_broken_engine_leaves_the_cpu_and_one_warning() -> None:
    report = report_of("smollm2-135m", failing(EngineFailure("the library is missing")))
    assert [device.name for device in report.devices] == ["CPU"]
    (warning,) = report.warnings
    assert "the library is missing" in warning
    assert report.totals.kv_bytes == 180 * MIB
    with pytest.raises(EngineFailure, match="the library is missing"):
        report_of("smollm2-135m", failing(EngineFailure("the library is missing")), exact=True)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(NetworkFailure):
        report_of("smollm2-135m", failing(NetworkFailure("no answer")))


def test_the_engine_cannot_plan_for_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="GPU7"):
        report_of("smollm2-135m", named=(("GPU7", GIB),), exact=True)
    with pytest.raises(UsageError, match="numbers"):
        report_of(numbers=LLAMA_8B, exact=True)


def test_what_is_no_model() -> None:
    with pytest.raises(UsageError, match="no model"):
        report_of()
    with pytest.raises(UsageError, match="two models"):
        report_of("smollm2-135m", numbers=LLAMA_8B)
    with pytest.raises(ModelNotFound):
        report_of("smollm2-135n")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    paths = bad.write_bad_files(tmp_path) | {
        name: tmp_path / f"other-{name}.gguf" for name in bad.OTHER_KINDS
    }
    for name, content in bad.OTHER_KINDS.items():
        paths[name].write_bytes(content)
    for path in paths.values():
        with pytest.raises(NotAModel):
            report_of(path)


def test_a_file_cut_in_its_tensors_is_estimated_with_a_warning(tmp_path: Path) -> None:
    _, cut = bad.cut_files(smollm2_path(), tmp_path)
    report, whole = report_of(cut, exact=True), report_of(smollm2_path(), exact=True)
    (warning,) = report.warnings
    assert "4,000,000" in warning
    assert report.devices[0].use == whole.devices[0].use
    assert report.model.size_bytes == whole.model.size_bytes


def test_contexts_of_the_grid() -> None:
    assert grid_contexts(2048) == (2048,)
    assert grid_contexts(4096) == (4096,)
    assert grid_contexts(40960) == (4096, 8192, 16384, 32768, 40960)


@pytest.mark.parametrize(("layers", "n_servers"), [("auto", 1), ("7", 1), ("all", 2)])
def test_offload_is_verified(layers: str, n_servers: int) -> None:
    """The engine's own servers stand in for GPUs; they get less than they have."""
    with ExitStack() as stack:
        servers = tuple(stack.enter_context(rpc_server()) for _ in range(n_servers))
        named = (("CPU", 64 * GIB), ("RPC0", 90 * MIB), ("RPC1", 60 * MIB))[: n_servers + 1]
        flags = {"n_ctx": "2048", "n_gpu_layers": layers, "rpc": servers}
        report = report_of("smollm2-135m", DeviceProbe, flags, named=named, reserve_bytes=0, verify=True)
    assert [one.name for one in report.verified] == ["CPU", "RPC0", "RPC1"][: n_servers + 1]
    for one in report.verified:
        for name in EXACT:
            figures = [getattr(use, name) for use in (one.formula, one.engine, one.measured)]
            assert len(set(figures)) == 1, (one.name, name, figures)
    if layers == "auto":
        assert 0 < report.settings.n_gpu_layers < 31
        assert report.fits
    else:
        assert report.settings.n_gpu_layers == (7 if layers == "7" else 31)


def test_a_server_that_is_left_out_holds_nothing() -> None:
    """Shares must go to the devices they were meant for: the first is left out, the others differ in size."""
    with ExitStack() as stack:
        servers = tuple(stack.enter_context(rpc_server()) for _ in range(3))
        flags = {"n_ctx": "2048", "n_gpu_layers": "all", "rpc": servers}
        named = (("CPU", 64 * GIB), ("RPC0", 0), ("RPC1", 90 * MIB), ("RPC2", 30 * MIB))
        report = report_of("smollm2-135m", DeviceProbe, flags, named=named, reserve_bytes=0, verify=True)
        told = report_of(
            "smollm2-135m", DeviceProbe, flags | {"tensor_split": "1,3"}, named=named[:2], exact=True
        )
        none = report_of(
            "smollm2-135m",
            DeviceProbe,
            flags,
            named=tuple((f"RPC{i}", 0) for i in range(3)),
            exact=True,
        )
    assert [one.name for one in report.verified] == ["CPU", "RPC1", "RPC2"]
    for one in report.verified:
        for name in EXACT:
            figures = [getattr(use, name) for use in (one.formula, one.engine, one.measured)]
            assert len(set(figures)) == 1, (one.name, name, figures)
    first, second = on(report, "RPC1").use.kv_bytes, on(report, "RPC2").use.kv_bytes
    assert first > 2 * second > 0
    assert on(told, "RPC2").use.kv_bytes > 2 * on(told, "RPC1").use.kv_bytes > 0
    assert [d.name for d in none.devices] == ["CPU"]
    assert none.devices[0].use.kv_bytes == none.totals.kv_bytes > 0


def test_what_even_a_dry_run_has_no_room_for_is_answered_by_the_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrent state is allocated in a dry run, too; here main memory is said to have none."""
    monkeypatch.setattr("llmrun.app.memory.vram_estimate.host_memory", lambda: HostMemory(GIB, 100))
    path = write_tiny(tmp_path / "m.gguf", "mamba")
    report = report_of(path, flags={"n_ctx": "512"}, exact=True)
    (warning,) = report.warnings
    assert report.method == "formula"
    assert "state of 1 sequences" in warning
    assert report.totals.recurrent_bytes > 100
    with pytest.raises(DoesNotFit):
        report_of(path, flags={"n_ctx": "512"}, verify=True)
