"""What the doctor concludes: from the engine's answers and deaths, from GPUs on the bus, from full disks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.bench.bandwidth import ReadBandwidth
from llmrun.app.doctor.engine import EngineProbes
from llmrun.app.doctor.gpus import PresentGpu, present_gpus
from llmrun.app.doctor.machine import MachineProbes, cpu_finding
from llmrun.app.doctor.run import DoctorRequest, examine, reach_hub
from llmrun.app.memory.host_memory import HostMemory
from llmrun.engine.api import GpuLayers
from llmrun.engine.bindings import Device
from llmrun.engine.selfcheck import EngineBuild
from llmrun.errors import DoesNotFit, EngineFailure, NetworkFailure
from llmrun.reports.doctor import DoctorReport, Finding
from llmrun.units import GIB, MIB

from tests.support.hub import loopback_hub

CPU = Device("CPU", "a processor", "cpu", GIB, GIB)
CARD = Device("CUDA0", "a card", "gpu", GIB, 2 * GIB)
NVIDIA = PresentGpu("NVIDIA", "cuda", ("CUDA", "Vulkan"), True)
AMX_CPU = "model name\t: a processor\nflags\t\t: avx2 fma amx_tile amx_int8\n"
PLAIN_CPU = "flags : avx2 fma\n"


def build(system_info: str = "CPU : AVX2 = 1 | FMA = 1 | ", **changes: Any) -> EngineBuild:
    plain = EngineBuild("1.0", "0.3", "/lib/libllama.so", system_info, ("CPU",), (CPU,), False)
    return replace(plain, **changes)


def generates(extra_bufts: bool, gpu_layers: GpuLayers, threads: int) -> int:
    return 4


def engine(**changes: Any) -> EngineProbes:
    plain = EngineProbes(
        build=build,
        repacking_is_safe=lambda _: True,
        generate=generates,
        gpus=tuple,
        read={"/proc/cpuinfo": PLAIN_CPU}.get,
    )
    return replace(plain, **changes)


MACHINE = MachineProbes(
    read=lambda _: None,
    memory=lambda: HostMemory(16 * GIB, 8 * GIB),
    bandwidth=lambda threads: ReadBandwidth(400e9, threads, "2020-01-01T00:00:00Z", 0.0),
    free_bytes=lambda _: 50 * GIB,
)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"LLMRUN_{kind}_DIR", str(tmp_path / kind))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return {name: value for name, value in os.environ.items() if name.startswith(("LLMRUN_", "HF_"))}


@pytest.fixture
def report(env: Mapping[str, str]) -> Callable[..., DoctorReport]:
    def of(probes: EngineProbes | None = None, machine: MachineProbes = MACHINE, **rest: Any) -> DoctorReport:
        return examine(DoctorRequest(env, engine=probes or engine(), machine=machine, **rest))

    return of


def only(found: DoctorReport, check: str) -> Finding:
    (one,) = [finding for finding in found.findings if finding.check == check]
    return one


Report = Callable[..., DoctorReport]


def test_all_is_well(report: Report) -> None:
    found = report()
    assert found.exit_code == 0
    assert {finding.level for finding in found.findings} == {"ok"}
    assert not any(finding.todo for finding in found.findings)


def raises(error: Exception) -> Callable[..., Any]:
    def probe(*_: object) -> Any:
        raise error

    return probe


@pytest.mark.parametrize(
    ("changes", "check", "code"),
    [
        ({"build": raises(EngineFailure("dead", "rebuild"))}, "engine", 7),
        ({"repacking_is_safe": raises(EngineFailure("dead", "rebuild"))}, "amx", 7),
        ({"generate": raises(EngineFailure("dead", "rebuild"))}, "generation", 7),
        ({"generate": raises(DoesNotFit("killed", "smaller"))}, "generation", 5),
    ],
)
def test_an_engine_that_fails_gives_its_code(
    report: Report, changes: dict[str, Any], check: str, code: int
) -> None:
    found = report(engine(**changes))
    assert (only(found, check).level, found.exit_code) == ("fail", code)
    assert only(found, check).todo
    assert only(found, "memory").level == "ok"  # the rest is looked at nevertheless


def test_a_machine_without_a_gpu_is_told_so(report: Report) -> None:
    assert only(report(), "gpu").level == "ok"
    seen = build(devices=(*build().devices, CARD))  # a server's over RPC, say
    listed = report(engine(build=lambda: seen))
    assert "gpu" not in {finding.check for finding in listed.findings}


def test_a_gpu_without_its_backend_names_the_rebuild(report: Report) -> None:
    found = report(engine(gpus=lambda: [NVIDIA]))
    assert only(found, "gpu").level == "warn"
    assert "make chat GPU=cuda" in only(found, "gpu").todo
    assert found.exit_code == 0


def test_a_gpu_without_a_driver_needs_that_first(report: Report) -> None:
    found = report(engine(gpus=lambda: [replace(NVIDIA, driver=False)]))
    assert "driver" in only(found, "gpu").todo


def test_a_backend_that_sees_no_device_needs_no_rebuild(report: Report) -> None:
    seen = build(backends=("CUDA", "CPU"))
    found = only(report(engine(gpus=lambda: [NVIDIA], build=lambda: seen)), "gpu")
    assert found.level == "warn"
    assert "make" not in found.todo


def with_card(**changes: Any) -> EngineProbes:
    seen = build(backends=("CUDA", "CPU"), devices=(CARD, CPU))
    return engine(gpus=lambda: [NVIDIA], build=lambda: seen, **changes)


def test_a_gpu_in_use_is_fine_and_is_what_generates(report: Report) -> None:
    layers: list[GpuLayers] = []

    def generate(extra_bufts: bool, gpu_layers: GpuLayers, threads: int) -> int:
        layers.append(gpu_layers)
        return 4

    found = report(with_card(generate=generate))
    assert only(found, "gpu").level == "ok"
    assert layers == ["all"]
    assert only(found, "generation").data["gpu"] is True


def test_a_gpu_that_fails_where_the_cpu_works_says_how_to_go_on(report: Report) -> None:
    def generate(extra_bufts: bool, gpu_layers: GpuLayers, threads: int) -> int:
        if gpu_layers:
            raise EngineFailure("no kernel image", "rebuild")
        return 4

    found = report(with_card(generate=generate))
    assert found.exit_code == 7
    assert "-ngl 0" in only(found, "generation").todo
    assert "no kernel image" in only(found, "generation").text


def test_kernels_that_the_build_lacks(report: Report) -> None:
    found = only(report(engine(build=lambda: build("CPU : AVX2 = 1 | "))), "build")
    assert found.level == "warn"
    assert found.data["unused_cpu_features"] == ["FMA"]


@pytest.mark.parametrize(("safe", "level"), [(True, "ok"), (False, "warn")])
def test_the_verdict_on_amx_is_told_and_used(report: Report, safe: bool, level: str) -> None:
    asked: list[bool] = []

    def generate(extra_bufts: bool, gpu_layers: GpuLayers, threads: int) -> int:
        asked.append(extra_bufts)
        return 4

    read = {"/proc/cpuinfo": AMX_CPU}.get
    found = report(engine(read=read, repacking_is_safe=lambda _: safe, generate=generate))
    assert only(found, "amx").level == level
    assert only(found, "amx").data == {"cpu": True, "repacked_weights": safe}
    assert asked == [safe]
    assert found.exit_code == 0


def test_scarce_memory_and_disks_warn(report: Report) -> None:
    poor = replace(MACHINE, memory=lambda: HostMemory(GIB, 100 * MIB), free_bytes=lambda _: MIB)
    found = report(machine=poor)
    assert only(found, "memory").level == "warn"
    assert [finding.level for finding in found.findings if finding.check == "disk"] == ["warn"] * 3
    assert found.exit_code == 0


def test_a_folder_that_is_a_file_warns(report: Report, env: Mapping[str, str]) -> None:
    Path(env["LLMRUN_DATA_DIR"]).write_text("")
    levels = {str(f.data["folder"]): f.level for f in report().findings if f.check == "disk"}
    assert levels == {"cache": "ok", "data": "warn", "models": "ok"}


def test_folders_that_the_system_does_not_let_us_look_for_are_no_fault_of_the_program(
    env: Mapping[str, str],
) -> None:
    too_long = str(Path(env["LLMRUN_CACHE_DIR"]).parent / ("x" * 300))
    closed = dict.fromkeys(("LLMRUN_CACHE_DIR", "LLMRUN_DATA_DIR"), too_long)
    assert examine(DoctorRequest({**env, **closed}, engine=engine(), machine=MACHINE)).exit_code == 0


def test_a_bandwidth_that_cannot_be_measured_warns(report: Report) -> None:
    found = report(machine=replace(MACHINE, bandwidth=raises(EngineFailure("no", "rebuild"))))
    assert only(found, "bandwidth").level == "warn"


def test_the_bandwidth_is_put_as_a_bound(report: Report) -> None:
    assert "50 tok/s at most" in only(report(), "bandwidth").text


def test_a_broken_settings_file_fails_as_every_command_would(report: Report, env: Mapping[str, str]) -> None:
    folder = Path(env["LLMRUN_CONFIG_DIR"])
    folder.mkdir()
    (folder / "config.yaml").write_text("n_ctx: banana\n")
    found = report()
    assert (only(found, "settings").level, found.exit_code) == ("fail", 2)
    assert "banana" in only(found, "settings").text


def test_a_broken_profile_warns(report: Report, env: Mapping[str, str]) -> None:
    folder = Path(env["LLMRUN_CONFIG_DIR"]) / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("nonsense: 1\n")
    found = report()
    assert only(found, "settings").level == "warn"
    assert "mine" in only(found, "settings").text


def test_a_default_model_that_is_gone_warns(report: Report, env: Mapping[str, str]) -> None:
    folder = Path(env["LLMRUN_CONFIG_DIR"])
    folder.mkdir()
    (folder / "config.yaml").write_text("model: ./gone.gguf\n")
    assert only(report(), "model").level == "warn"


def test_an_unfinished_download_warns(report: Report, env: Mapping[str, str]) -> None:
    blobs = Path(env["HF_HUB_CACHE"]) / "models--someone--something" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_bytes(bytes(5))
    found = only(report(), "downloads")
    assert (found.level, found.data["size_bytes"]) == ("warn", 5)
    assert "someone/something" in found.todo


def test_prefixes_on_disk_are_weighed_against_their_bound(report: Report, env: Mapping[str, str]) -> None:
    assert only(report(), "prefixes").data["used_bytes"] == 0
    folder = Path(env["LLMRUN_CACHE_DIR"]) / "prefix" / "model"
    folder.mkdir(parents=True)
    (folder / "one.prefix").write_bytes(bytes(2 * MIB))
    assert only(report(), "prefixes").level == "ok"

    def bounded(mib: int) -> Finding:
        config = Path(env["LLMRUN_CONFIG_DIR"]) / "config.yaml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(f"prefix_cache_mib: {mib}\n")
        return only(report(), "prefixes")

    assert (bounded(1).level, bounded(1).data["used_bytes"]) == ("warn", 2 * MIB)
    assert bounded(0).data == {"on_disk": False}


def test_any_answer_of_the_hub_is_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with loopback_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        endpoint, took_s = reach_hub()
        assert (endpoint, len(hub.log)) == (hub.endpoint, 1)
        assert took_s > 0
        hub.fall_silent()
        with pytest.raises(NetworkFailure):
            reach_hub()


def test_the_network_is_asked_only_on_request(report: Report) -> None:
    asked = []

    def reach() -> tuple[str, float]:
        asked.append(1)
        return "http://hub", 0.5

    assert "network" not in {finding.check for finding in report(reach=reach).findings}
    assert not asked
    assert only(report(reach=reach, network=True), "network").level == "ok"
    gone = report(reach=raises(NetworkFailure("gone", "check")), network=True)
    assert (only(gone, "network").level, gone.exit_code) == ("warn", 0)


def test_offline_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NetworkFailure, match="HF_HUB_OFFLINE"):
        reach_hub()


def put(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_gpus_are_found_by_driver_and_on_the_bus(tmp_path: Path) -> None:
    assert present_gpus(tmp_path, "linux") == ()
    put(tmp_path, "sys/bus/pci/devices/0/class", "0x030000\n")
    put(tmp_path, "sys/bus/pci/devices/0/vendor", "0x1234\n")  # an emulated adapter
    put(tmp_path, "sys/bus/pci/devices/1/class", "0x020000\n")
    put(tmp_path, "sys/bus/pci/devices/1/vendor", "0x8086\n")  # a network card
    assert present_gpus(tmp_path, "linux") == ()
    put(tmp_path, "sys/bus/pci/devices/2/class", "0x030200\n")
    put(tmp_path, "sys/bus/pci/devices/2/vendor", "0x10de\n")
    (found,) = present_gpus(tmp_path, "linux")
    assert (found.backend, found.driver) == ("cuda", False)
    put(tmp_path, "dev/nvidia0")
    put(tmp_path, "dev/kfd")
    assert [(gpu.backend, gpu.driver) for gpu in present_gpus(tmp_path, "linux")] == [
        ("cuda", True),
        ("rocm", True),
    ]


def test_apples_own_processors_have_a_gpu(tmp_path: Path) -> None:
    assert [gpu.backend for gpu in present_gpus(tmp_path, "darwin", "arm64")] == ["metal"]
    assert present_gpus(tmp_path, "darwin", "x86_64") == ()


def test_a_control_groups_share_of_the_cpus_is_told() -> None:
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}
    found = cpu_finding(files.get)
    assert found.data["cpu_quota"] == 1.5
    assert found.data["threads"] == 1
