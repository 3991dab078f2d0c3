"""Questions to the engine in a child process: sizes, refusals with the engine's reason, crashes, bounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, ModelParams, RopeParams
from llmrun.engine.probe import account as accounting
from llmrun.engine.probe import child
from llmrun.engine.probe.account import account
from llmrun.engine.probe.sizes import ProbedSizes, measure_sizes, probe_devices, probe_sizes
from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError, NotAModel, UsageError
from llmrun.gguf.sparse import sparse_copy
from llmrun.units import MIB

from tests.support.archs import FULL_SIZE, write_arch, write_full_size, write_split
from tests.support.gguf_writer import TensorType
from tests.support.models import smollm2_path
from tests.support.waiting import TIMEOUT_S

CPU_ONLY = ModelParams("", gpu_layers=0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arch(tmp_path_factory.mktemp("llama") / "m.gguf", "llama")


def on_cpu(path: Path) -> ModelParams:
    return ModelParams(str(path), gpu_layers=0)


def ask_sizes(path: Path, **params: Any) -> ProbedSizes:
    return probe_sizes([path], CPU_ONLY, ContextParams(**params))


def test_the_devices_start_with_the_cpu() -> None:
    first = probe_devices()[0]
    assert (first.name, first.kind) == ("CPU", "cpu")
    assert first.total_bytes >= first.free_bytes > 0


def test_a_copy_without_weights_is_sized_like_the_model(tmp_path: Path) -> None:
    params = ContextParams(n_ctx=2048, n_ubatch=128, type_k="q8_0", type_v="q8_0", flash_attn="on")
    dry = probe_sizes(sparse_copy([smollm2_path()], tmp_path), CPU_ONLY, params)
    real = measure_sizes([smollm2_path()], CPU_ONLY, params)
    assert dry == real
    (cpu,) = dry.devices
    assert cpu.kv_bytes == 2048 * 30 * 2 * 192 * 34 // 32
    assert cpu.output_bytes == 4 * 49152
    assert (dry.n_ctx, dry.n_ctx_seq, dry.n_ubatch, dry.flash_attn) == (2048, 2048, 128, "on")
    assert dry.layer_devices == ("CPU",) * 31


def test_a_model_in_parts(tmp_path: Path, llama: Path) -> None:
    (tmp_path / "copies").mkdir()
    parts = write_split(tmp_path, "llama", 3)
    whole = ask_sizes(llama, n_ctx=512)
    assert probe_sizes(sparse_copy(parts, tmp_path / "copies"), CPU_ONLY, ContextParams(n_ctx=512)) == whole


def test_every_parameter_reaches_the_child(llama: Path) -> None:
    model = ModelParams("", gpu_layers=0, override_tensor=(("ffn_up", "CPU"),))
    context = ContextParams(n_ctx=512, n_seq=2, kv_unified=False, rope=RopeParams("yarn", 5000.0))
    found = probe_sizes([llama], model, context)
    assert (found.n_ctx, found.n_ctx_seq) == (512, 256)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_models_of_full_size(tmp_path: Path, name: str) -> None:
    """Their files are holes; nothing of their weights is read or allocated."""
    (cpu,) = ask_sizes(write_full_size(tmp_path / "m.gguf", name), n_ctx=32768).devices
    assert cpu.weights_bytes > 4 << 30
    assert cpu.kv_bytes > 100 * MIB
    assert cpu.compute_bytes > 10 * MIB


@pytest.mark.parametrize(
    ("arch", "params", "error", "reason"),
    [
        ("llama", {"type_v": "q8_0", "flash_attn": "off"}, EngineFailure, "requires flash_attn"),
        ("deepseek2", {"type_v": "q8_0", "flash_attn": "on"}, EngineFailure, "different K"),
        ("llama", {"n_seq": 300}, EngineFailure, "<= 256"),
        ("llama", {"n_ctx": 2**31}, DoesNotFit, "2,147,483,648"),
        ("llama", {"type_k": "q2"}, UsageError, "q2"),
    ],
)
def test_refusals(
    tmp_path: Path, arch: str, params: dict[str, Any], error: type[LlmrunError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        ask_sizes(write_arch(tmp_path / "m.gguf", arch), **params)


@pytest.mark.parametrize(("n_seq", "kv_unified"), [(1, True), (4, True), (4, False)])
def test_the_state_of_a_dry_run_may_take_what_there_is(tmp_path: Path, n_seq: int, kv_unified: bool) -> None:
    path = write_arch(tmp_path / "m.gguf", "falcon-h1")
    params = ContextParams(n_ctx=512, n_seq=n_seq, kv_unified=kv_unified)
    needed = account([path], on_cpu(path), params, dry=True).on("CPU").recurrent_bytes
    assert probe_sizes([path], CPU_ONLY, params, state_bytes=needed).on("CPU").recurrent_bytes == needed
    with pytest.raises(DoesNotFit, match=f"state of {n_seq} sequences"):
        probe_sizes([path], CPU_ONLY, params, state_bytes=needed - 1)


def test_a_state_too_large_for_a_dry_run(tmp_path: Path) -> None:
    path = write_arch(tmp_path / "m.gguf", "mamba", n_layer=64, n_embd=4096, d_inner=8192)
    with pytest.raises(DoesNotFit, match="256 sequences"):  # refused before 9.5 GiB are allocated
        ask_sizes(path, n_seq=256, kv_unified=False)


def test_a_damaged_file(llama: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama.read_bytes()[:-1000])
    with pytest.raises(NotAModel, match="bounds"):
        ask_sizes(cut)


def test_a_crash_is_an_error_with_its_reason(tmp_path: Path) -> None:
    """The library asserts that the state's size is that of its heads."""
    path = write_arch(tmp_path / "m.gguf", "qwen3next", d_state=64, d_inner=128)
    with pytest.raises(EngineFailure, match=r"SIGABRT.*GGML_ASSERT"):
        ask_sizes(path)


def test_the_last_line_is_the_reason() -> None:
    with pytest.raises(EngineFailure, match=r"SIGABRT.*GGML_ASSERT\(x\) failed"):
        child._read("sizes", -6, b"", b"something\nm.c:1: GGML_ASSERT(x) failed\n")


@pytest.mark.parametrize(
    ("status", "err"),
    [
        (-9, b""),
        (-6, b"ggml.c:1: GGML_ASSERT(ctx->mem_buffer != NULL) failed\n"),
        (-6, b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
        (1, b"Traceback (most recent call last):\nMemoryError\n"),
    ],
)
def test_a_child_that_got_no_memory(status: int, err: bytes) -> None:
    with pytest.raises(DoesNotFit, match="memory"):
        child._read("measure", status, b"", err)


SLEEPS = (
    "import llmrun.engine.probe.__main__ as entry, time\n"
    "entry._devices = lambda _: print('asked', flush=True) or time.sleep(600) or print('lived on')\n"
    "entry.answer('devices')"
)


def bounded(alarm_s: int, parent: int) -> bytes:
    bounds = {"alarm_s": alarm_s, "memory_bytes": None, "parent": parent}
    return json.dumps({"bounds": bounds, "question": {"rpc": []}}).encode()


def test_a_child_that_nobody_ends_in_time_ends_itself() -> None:
    command = [sys.executable, "-P", "-c", SLEEPS]
    ended = subprocess.run(
        command, input=bounded(1, os.getpid()), stdout=subprocess.DEVNULL, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == -signal.SIGALRM


def test_an_orphan_ends_itself() -> None:
    """The child of a program that was killed, by whatever signal, does not load on."""
    code = (
        "import os, subprocess, sys, time\n"
        "from tests.engine.test_probe_sizes import SLEEPS, bounded\n"
        "child = subprocess.Popen([sys.executable, '-P', '-c', SLEEPS], stdin=subprocess.PIPE)\n"
        "child.communicate(bounded(600, os.getpid()))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"asked\n"
        parent.kill()
        assert parent.stdout.read() == b""  # all there is once the child has ended, too


def test_an_answer_that_is_none() -> None:
    with pytest.raises(EngineFailure, match="status 3"):
        child._read("sizes", 3, b"not json\n", b"")


def test_a_child_without_memory_ends_with_an_error() -> None:
    with pytest.raises(EngineFailure, match="sizes"):
        child.ask("sizes", {}, timeout_s=60, memory_bytes=8 * MIB)


def test_a_child_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "command", lambda _entry: ["sleep", "60"])
    with pytest.raises(EngineFailure, match="within 1 s"):
        child.ask("sizes", {}, timeout_s=1)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "falcon-h1"])
def test_where_the_library_tells_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """The log has the same figures, rounded to 0.01 MiB a buffer."""
    path = write_arch(tmp_path / "m.gguf", arch)
    params = ContextParams(n_ctx=4096, n_seq=3)
    exact = account([path], on_cpu(path), params, dry=True)
    monkeypatch.setattr(accounting, "read_breakdown", lambda *_: None)
    rounded = account([path], on_cpu(path), params, dry=True)
    assert (exact.exact, rounded.exact) == (True, False)
    (want,), (got,) = exact.devices, rounded.devices
    assert got.weights_bytes == want.weights_bytes
    for bucket in ("kv_bytes", "recurrent_bytes", "compute_bytes", "output_bytes"):
        assert getattr(got, bucket) == pytest.approx(getattr(want, bucket), abs=2 * MIB // 100), bucket


def test_repacked_weights_are_a_second_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_arch(tmp_path / "m.gguf", "llama", weights=TensorType.Q4_0)
    repacked = account([path], on_cpu(path), ContextParams(n_ctx=256), dry=True).on("CPU")
    monkeypatch.setattr(accounting, "extra_bufts_are_safe", lambda _: False)
    plain = account([path], on_cpu(path), ContextParams(n_ctx=256), dry=True).on("CPU")
    assert plain.repack_bytes == 0
    assert plain.buffer_bytes == plain.weights_bytes == repacked.weights_bytes
    assert repacked.buffer_bytes + repacked.repack_bytes >= repacked.weights_bytes
