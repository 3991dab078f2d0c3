"""Opening and closing: progress, cancelling, refusals, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, GpuLayers, ModelParams
from llmrun.engine.bindings import Device, library, native_log
from llmrun.engine.llama import LlamaEngine, open_engine
from llmrun.engine.model import Model, wanted_layers
from llmrun.errors import DoesNotFit, EngineFailure, Interrupted, NotAModel, UsageError
from llmrun.gguf.check import check_runnable
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header

from tests.support.alone import alone
from tests.support.archs import write_arch
from tests.support.bad import BAD_FILES, OTHER_KINDS
from tests.support.engines import OpenTiny, open_llama, run_one
from tests.support.gguf_writer import string
from tests.support.models import smollm2_path
from tests.support.puppet import Puppet, write_puppet
from tests.support.tiny import Arch
from tests.support.waiting import wait_until

_OPEN_WITH_48_MIB = """
import resource, sys, threading
from llmrun.engine.api import ContextParams, GpuLayers, ModelParams
from llmrun.engine.bindings import Device, library, native_log
from llmrun.engine.llama import open_engine
from llmrun.errors import DoesNotFit
library()
now_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now_bytes + (48 << 20),) * 2)
try:
    model = ModelParams(sys.argv[1], gpu_layers=0, use_mmap=sys.argv[2] == "mapped")
    open_engine(model, ContextParams(n_ctx=1 << 20), lambda _: None, threading.Event())
except DoesNotFit as error:
    sys.exit(error.exit_code)
"""


def test_progress_rises_to_one(tiny_path: dict[Arch, Path]) -> None:
    seen: list[float] = []
    engine = open_engine(
        ModelParams(str(tiny_path["llama"])), ContextParams(n_ctx=256), seen.append, threading.Event()
    )
    engine.close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_load_modes_give_the_same_model(tiny_path: dict[Arch, Path]) -> None:
    answers = []
    for use_mmap in (True, False):
        engine = open_engine(
            ModelParams(str(tiny_path["llama"]), gpu_layers=0, use_mmap=use_mmap),
            ContextParams(n_ctx=256),
            lambda _: None,
            threading.Event(),
        )
        answers.append(run_one(engine, [10, 11, 12], max_tokens=8).tokens)
        engine.close()
    assert answers[0] == answers[1]


def test_layers_wanted() -> None:
    assert wanted_layers("auto", has_gpu=False) == 0
    assert wanted_layers("auto", has_gpu=True) == wanted_layers("all", has_gpu=False) > 1000
    assert wanted_layers(7, has_gpu=True) == 7


@pytest.mark.parametrize(
    ("layers", "maps", "use_mmap", "mapped"),
    [("all", True, True, True), ("all", False, True, False), (0, False, True, True), (0, True, False, False)],
)
def test_a_gpu_that_takes_no_weights_from_a_mapping(
    tiny_path: dict[Arch, Path],
    monkeypatch: pytest.MonkeyPatch,
    layers: GpuLayers,
    maps: bool,
    use_mmap: bool,
    mapped: bool,
) -> None:
    gpu = Device("Vulkan0", "graphics of the processor", "igpu", 1, 1, maps=maps)
    monkeypatch.setattr("llmrun.engine.model.gpus_in_use", lambda _params: [gpu])
    params = ModelParams(str(tiny_path["llama"]), gpu_layers=layers, use_mmap=use_mmap)
    model = Model(params, extra_bufts=False, progress=lambda _: None, cancelled=threading.Event())
    assert model.mapped == mapped
    assert any(f"load_mode = {'mmap' if mapped else 'none'}" in line for line in native_log.lines)
    model.close()


@pytest.mark.parametrize(("main_gpu", "mapped"), [(0, True), (1, False)])
def test_only_the_main_gpu_has_to_take_weights_from_a_mapping(
    tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch, main_gpu: int, mapped: bool
) -> None:
    """A dry load: there is no device that the library could take for the main one."""
    gpus = [Device("RPC0", "", "gpu", 1, 1), Device("Vulkan0", "", "igpu", 1, 1, maps=False)]
    monkeypatch.setattr("llmrun.engine.model.gpus_in_use", lambda _params: gpus)
    params = ModelParams(str(tiny_path["llama"]), gpu_layers="all", main_gpu=main_gpu)
    model = Model(params, extra_bufts=False, progress=lambda _: None, cancelled=threading.Event(), dry=True)
    assert model.mapped == mapped
    model.close()


def test_layers_for_prediction_take_places_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As load_tensors in llama-model.cpp counts: n_layer_all and the output."""
    monkeypatch.setattr("llmrun.engine.model.gpus_in_use", lambda _params: [Device("CUDA0", "", "gpu", 1, 1)])
    path = write_arch(tmp_path / "m.gguf", "glm4moe")
    model = Model(
        ModelParams(str(path), gpu_layers="all"),
        extra_bufts=False,
        progress=lambda _: None,
        cancelled=threading.Event(),
        dry=True,
    )
    facts = memory_facts(read_header(path))
    model.close()
    assert model.gpu_layers == facts.n_slots == len(facts.layers) + 2


def test_a_context_that_gets_no_threads_is_freed(
    tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[object] = []
    free = library().llama_free

    def noted(context: object) -> None:
        freed.append(context)
        free(context)

    def refuse(_count: int) -> None:
        raise EngineFailure("no threads")

    monkeypatch.setattr(library(), "llama_free", noted)
    monkeypatch.setattr("llmrun.engine.threadpool._check_threads", refuse)
    with pytest.raises(EngineFailure, match="no threads"):
        open_llama(tiny_path["llama"])
    assert len(freed) == 1


class TestCancel:
    def open(self, path: Path, cancelled: threading.Event, *, at: float = 2.0) -> LlamaEngine:
        def progress(share: float) -> None:
            if share >= at:
                cancelled.set()

        return open_engine(ModelParams(str(path)), ContextParams(n_ctx=256), progress, cancelled)

    def test_before_the_load(self, tiny_path: dict[Arch, Path]) -> None:
        cancelled = threading.Event()
        cancelled.set()
        with pytest.raises(Interrupted):
            self.open(tiny_path["llama"], cancelled)

    @pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
    def test_at_a_moment_of_the_load(self, at: float) -> None:
        with pytest.raises(Interrupted):
            self.open(smollm2_path(), threading.Event(), at=at)

    def test_between_weights_and_context(
        self, tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cancelled = threading.Event()
        monkeypatch.setattr("llmrun.engine.model.Model.check_generates", lambda _: cancelled.set())
        with pytest.raises(Interrupted):
            self.open(tiny_path["llama"], cancelled)


class TestRefusals:
    def refuse(self, path: Path) -> NotAModel:
        """What opening says, after the header check that every file passes first."""
        check_runnable(read_header(path), name=path.name)
        with pytest.raises(NotAModel) as caught:
            open_llama(path)
        return caught.value

    @pytest.mark.parametrize("name", [*BAD_FILES, *OTHER_KINDS])
    def test_a_bad_file_is_no_model(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "bad.gguf"
        path.write_bytes((BAD_FILES | OTHER_KINDS)[name])
        with pytest.raises(NotAModel) as caught:
            self.refuse_or_check(path)
        assert "no reason given" not in caught.value.message

    def refuse_or_check(self, path: Path) -> None:
        check_runnable(read_header(path), name=path.name)
        open_llama(path).close()

    def test_an_unknown_architecture_is_named(self, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "p.gguf", ["a"]).path
        data = path.read_bytes().replace(string("llama"), string("lambo"), 1)  # general.architecture
        path.write_bytes(data.replace(b"llama.", b"lambo."))
        assert "lambo" in self.refuse(path).message

    def test_a_missing_tensor_is_named(self, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "p.gguf", ["a"]).path
        data = path.read_bytes()
        assert data.count(b"blk.0.ffn_up.weight") == 1
        path.write_bytes(data.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
        assert "ffn_up" in self.refuse(path).message

    def test_an_unknown_cache_type_is_a_usage_error(self, tiny_path: dict[Arch, Path]) -> None:
        with pytest.raises(UsageError, match="q8_7"):
            open_llama(tiny_path["llama"], type_k="q8_7")

    def test_a_quantized_v_without_flash_attention_is_refused_with_the_reason(
        self, tiny_path: dict[Arch, Path]
    ) -> None:
        with pytest.raises(EngineFailure, match="flash"):
            open_llama(tiny_path["llama"], type_v="q8_0", flash_attn="off")

    def test_too_many_sequences_are_refused_with_the_reason(self, tiny_path: dict[Arch, Path]) -> None:
        with pytest.raises(EngineFailure, match="256"):
            open_llama(tiny_path["llama"], n_seq=257)

    @pytest.mark.parametrize("how", ["read", "mapped"])
    @pytest.mark.parametrize("what", ["weights", "context"])
    def test_what_does_not_fit_says_so(self, tiny_path: dict[Arch, Path], what: str, how: str) -> None:
        paths = {"weights": smollm2_path(), "context": tiny_path["llama"]}  # 92 MiB; 512 MiB for 2^20 tokens
        child = subprocess.run(
            [sys.executable, "-c", _OPEN_WITH_48_MIB, str(paths[what]), how],
            check=False,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )
        assert child.returncode == DoesNotFit.exit_code


class TestRepacking:
    """Copies of weights for faster kernels, which a model can do without."""

    @staticmethod
    def without_memory_for(buffer: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Short(Model):
            def __init__(self, params: ModelParams, *, extra_bufts: bool, **rest: Any) -> None:
                if extra_bufts:
                    raise DoesNotFit(f"m.gguf does not fit in memory: unable to allocate {buffer} buffer")
                super().__init__(params, extra_bufts=False, **rest)

        monkeypatch.setattr("llmrun.engine.model.Model", Short)
        monkeypatch.setattr("llmrun.engine.amx.extra_bufts_are_safe", lambda _: True)

    @pytest.mark.parametrize("buffer", ["CPU_REPACK", "AMX"])
    def test_is_left_out_where_memory_lacks(
        self, tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch, buffer: str
    ) -> None:
        self.without_memory_for(buffer, monkeypatch)
        engine = open_llama(tiny_path["llama"])
        assert engine.facts.extra_bufts is False
        engine.close()

    def test_other_buffers_are_no_copies(
        self, tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.without_memory_for("CPU", monkeypatch)
        with pytest.raises(DoesNotFit):
            open_llama(tiny_path["llama"])


class TestClosing:
    def test_twice(self, tiny_path: dict[Arch, Path]) -> None:
        engine = open_llama(tiny_path["llama"])
        engine.close()
        engine.close()
        engine.interrupt()  # a Ctrl-C that comes late

    def test_a_failed_context_frees_the_model(
        self, tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        freed: list[object] = []
        monkeypatch.setattr("llmrun.engine.model.Model.close", lambda model: freed.append(model.handle))
        with pytest.raises(EngineFailure):
            open_llama(tiny_path["llama"], n_seq=257)
        assert len(freed) == 1
        assert freed[0]

    def test_nothing_is_left_after_many_rounds(self, puppet: Puppet) -> None:
        alone(many_rounds, puppet.path, puppet.go_token)


def many_rounds(path: str, go_token: str) -> None:
    """In a process without the files and threads of other tests."""

    def round_trip() -> None:
        engine = open_llama(Path(path), n_ctx=16384, n_threads=2, n_threads_batch=2)
        run_one(engine, [int(go_token)], max_tokens=1)
        engine.close()

    for _ in range(3):
        round_trip()
    before = leftovers()
    for _ in range(20):
        round_trip()
    wait_until(lambda: leftovers()[0] <= before[0] and leftovers()[1] <= before[1], "end of what was opened")
    assert leftovers()[2] - before[2] < 8 << 20  # each round's cache alone takes 2 MiB


def leftovers() -> tuple[int, int, int]:
    """File descriptors, threads and resident bytes of this process."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    n_files, n_threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return n_files, n_threads, resident_pages * os.sysconf("SC_PAGE_SIZE")


def test_shared_engines_are_independent(open_tiny: OpenTiny) -> None:
    one, other = open_tiny("llama"), open_tiny("llama", copy=1)
    one.interrupt()
    assert run_one(other, [10, 11], max_tokens=3).reason == "length"
    assert one.held(0) == []
