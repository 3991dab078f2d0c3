"""Layers, experts and context chosen for the devices there are, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.app.memory import offload
from llmrun.app.memory.host_memory import HostMemory
from llmrun.app.memory.offload import Budget, LoadPlan
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import Device
from llmrun.errors import DoesNotFit, UsageError
from llmrun.gguf.facts import model_facts
from llmrun.gguf.reader import read_header
from llmrun.units import GIB, MIB

from tests.support.archs import write_full_size
from tests.support.models import smollm2_path

CPU = Device("CPU", "a processor", "cpu", 1, 1)
N_LAYERS = 31  # of SmolLM2, the output among them
# SmolLM2: 92 MiB of weights, 180 MiB of K/V at 8,192 tokens


def card(size_bytes: int, name: str = "CUDA0") -> Device:
    return Device(name, "a card", "gpu", size_bytes, size_bytes)


class Planner:
    """Plans for devices that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def plan(
        self,
        gpus: Sequence[Device],
        path: Path | None = None,
        *,
        host_bytes: int = 64 * GIB,
        n_ctx: int = 8192,
        budget: Budget | None = None,
        ctx_fixed: bool = True,
        strict: bool = False,
        **model: object,
    ) -> LoadPlan:
        header = read_header(path or smollm2_path())
        self.patch.setattr(offload, "host_memory", lambda: HostMemory(host_bytes, host_bytes))
        self.patch.setattr(offload, "engine_devices", lambda: (*gpus, CPU))
        return offload.plan_load(
            offload.Subject((header,), model_facts(header)),
            ModelParams("", **model),  # type: ignore[arg-type]
            ContextParams(n_ctx=n_ctx),
            budget or Budget(reserve_bytes=0),
            ctx_fixed=ctx_fixed,
            strict=strict,
        )


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    return Planner(monkeypatch)


def test_without_a_gpu_nothing_is_planned(planner: Planner) -> None:
    plan = planner.plan([])
    assert (plan.offload, plan.model.gpu_layers) == (None, "auto")


@pytest.mark.parametrize("size_mib", [1, 60, 150, 250, 1000])
def test_as_many_layers_as_fit(planner: Planner, size_mib: int) -> None:
    plan = planner.plan([card(size_mib * MIB)])
    assert plan.offload is not None
    layers = plan.model.gpu_layers
    assert isinstance(layers, int)
    assert layers == plan.offload.gpu_layers
    assert plan.offload.kind == {0: "cpu", N_LAYERS: "all"}.get(layers, "layers")
    assert planner.plan([card(size_mib * MIB)], gpu_layers=layers).offload is None
    if layers < N_LAYERS:
        with pytest.raises(DoesNotFit):
            planner.plan([card(size_mib * MIB)], gpu_layers=layers + 1)
    assert (size_mib >= 1000) == (layers == N_LAYERS)
    assert (size_mib <= 1) == (layers == 0)


def test_the_reserve_is_for_what_is_chosen_not_for_what_is_asked(planner: Planner) -> None:
    gpu, reserve = [card(1300 * MIB)], Budget(reserve_bytes=1280 * MIB)
    assert planner.plan(gpu, budget=reserve).model.gpu_layers == 0
    assert planner.plan(gpu, budget=reserve, gpu_layers="all").model.gpu_layers == "all"


def test_layers_that_do_not_fit_are_refused_with_the_number_that_does(planner: Planner) -> None:
    gpu = [card(150 * MIB)]
    with pytest.raises(DoesNotFit) as refused:
        planner.plan(gpu, gpu_layers="all")
    assert "CUDA0" in refused.value.message
    assert "150.0 MiB" in refused.value.message
    layers = int(refused.value.hint.split("-ngl ")[1].split()[0])
    assert 0 < layers < N_LAYERS
    planner.plan(gpu, gpu_layers=layers)
    forced = planner.plan(gpu, gpu_layers="all", budget=Budget(force=True))
    assert forced.model.gpu_layers == "all"


def test_the_context_shrinks_last_and_only_if_nobody_set_it(planner: Planner) -> None:
    gpu, host = [card(MIB)], 230 * MIB
    shrunk = planner.plan(gpu, host_bytes=host, ctx_fixed=False)
    assert shrunk.offload is not None
    assert shrunk.offload.ctx_shrunk
    assert 4096 <= shrunk.context.n_ctx == shrunk.offload.n_ctx < 8192
    assert f"{shrunk.context.n_ctx:,}" in str(shrunk.offload)
    kept = planner.plan(gpu, host_bytes=host)  # mapped weights give way
    assert (kept.context.n_ctx, kept.model.gpu_layers) == (8192, 0)
    with pytest.raises(DoesNotFit):
        planner.plan(gpu, host_bytes=host, use_mmap=False)
    forced = planner.plan(gpu, host_bytes=host, use_mmap=False, budget=Budget(force=True))
    assert forced.context.n_ctx == 8192


def test_experts_leave_the_gpu_before_layers_do(planner: Planner, tmp_path: Path) -> None:
    path = write_full_size(tmp_path / "moe.gguf", "30B MoE")
    sizes = [planner.plan([card(size * GIB)], path, n_ctx=4096) for size in range(1, 30, 3)]
    kinds = list(dict.fromkeys(plan.offload.kind for plan in sizes if plan.offload))
    assert kinds == ["layers", "experts_on_cpu", "all"]
    apart = next(plan for plan in sizes if plan.offload and plan.offload.kind == "experts_on_cpu")
    assert apart.offload is not None
    assert apart.model.n_cpu_moe == apart.offload.n_cpu_moe > 0
    assert apart.model.gpu_layers == apart.offload.n_layers


def test_devices_by_name(planner: Planner) -> None:
    gpus = [card(GIB), card(GIB, "CUDA1"), card(GIB, "CUDA2")]
    less = planner.plan(gpus, budget=Budget((("CUDA0", 0), ("CUDA2", 250 * MIB)), 0))
    assert less.offload is not None
    assert less.offload.devices == less.model.devices == ("CUDA1", "CUDA2")
    assert list(less.model.tensor_split) == [GIB, 250 * MIB]
    told = planner.plan(gpus, budget=Budget((("CUDA0", 0),), 0), tensor_split=(3.0, 1.0))
    assert (told.model.devices, told.model.tensor_split) == (("CUDA1", "CUDA2"), (3.0, 1.0))
    all_there = planner.plan(gpus, budget=Budget((("CUDA0", GIB),), 0))
    assert (all_there.model.devices, len(all_there.model.tensor_split)) == (None, 3)
    none = planner.plan(gpus[:1], budget=Budget((("CUDA0", 0),), 0))
    assert (none.model.gpu_layers, none.model.devices, none.offload) == (0, (), None)
    inside = Device("Vulkan0", "graphics of the processor", "igpu", GIB, GIB)
    instead = planner.plan([*gpus[:1], inside], budget=Budget((("CUDA0", 0),), 0))
    assert instead.model.devices == ("Vulkan0",)
    with pytest.raises(UsageError, match="CUDA7"):
        planner.plan(gpus, budget=Budget((("CUDA7", GIB),)))
    with pytest.raises(DoesNotFit):
        planner.plan([], budget=Budget((("CPU", 100 * MIB),)))


def test_a_card_that_two_backends_see_is_one(planner: Planner) -> None:
    twice = [replace(card(GIB, name), address="0000:01:00.0") for name in ("CUDA0", "Vulkan0")]
    plan = planner.plan(twice)
    assert plan.offload is not None
    assert plan.offload.devices == ("CUDA0",)


def test_memory_that_a_backend_does_not_tell_is_that_of_the_host(planner: Planner) -> None:
    assert planner.plan([card(0)]).model.gpu_layers == N_LAYERS


def test_an_integrated_gpu_and_the_host_share_one_memory(planner: Planner) -> None:
    inside = Device("Vulkan0", "graphics of the processor", "igpu", 64 * GIB, 64 * GIB)
    assert planner.plan([inside], host_bytes=GIB).model.gpu_layers == N_LAYERS
    with pytest.raises(DoesNotFit) as refused:
        planner.plan([inside], host_bytes=250 * MIB, gpu_layers="all")  # 92 + 180 MiB on the GPU
    assert "250.0 MiB" in refused.value.message


def test_weights_that_are_read_count_as_main_memory(planner: Planner) -> None:
    """Where an integrated GPU takes none from a mapped file: 16 of 30 layers and the embedding, 62.5 MiB."""
    inside = Device("Vulkan0", "graphics of the processor", "igpu", 64 * GIB, 64 * GIB)
    read = replace(inside, maps=False)
    least = next(n for n in range(250, 600) if _loads(planner, inside, n * MIB))
    assert not _loads(planner, read, (least + 60) * MIB)
    assert _loads(planner, read, (least + 65) * MIB)


def _loads(planner: Planner, device: Device, host_bytes: int) -> bool:
    try:
        planner.plan([device], host_bytes=host_bytes, gpu_layers=15)
    except DoesNotFit:
        return False
    return True


@pytest.mark.parametrize("layers", [1, 99, "all"])
def test_layers_without_a_gpu_are_an_error_where_that_is_wanted(planner: Planner, layers: object) -> None:
    assert planner.plan([], gpu_layers=layers).offload is None
    with pytest.raises(UsageError, match=f"-ngl {layers}"):
        planner.plan([], gpu_layers=layers, strict=True)
    gpu, without = [card(GIB)], Budget((("CUDA0", 0),), 0)
    assert planner.plan(gpu, gpu_layers=layers, strict=True).model.gpu_layers == layers
    with pytest.raises(UsageError):
        planner.plan(gpu, gpu_layers=layers, budget=without, strict=True)
    for unasked in (0, "auto"):
        assert planner.plan([], gpu_layers=unasked, strict=True).offload is None
