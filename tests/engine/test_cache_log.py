"""Cache sizes read from the log, against the formula: cells x layers x (K row + V row).

A row is head size x K/V heads; f16 takes 2 bytes a number, q8_0 34 bytes for 32 numbers. The log gives MiB
with two decimals, hence the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import CacheBlock, ContextParams
from llmrun.engine.cache_log import (
    read_buffers,
    read_cache_blocks,
    read_flash_attention,
    read_layer_devices,
    read_pipelined,
)
from llmrun.engine.context import Context
from llmrun.engine.model import Model
from llmrun.units import MIB

from tests.support.engines import OpenTiny, open_llama
from tests.support.models import gemma_path, smollm2_path

ROUNDING_BYTES = 0.005 * MIB + 1
F16, Q8_0 = 2, 34 / 32

Blocks = Callable[..., tuple[CacheBlock, ...]]


def blocks_of(path: Path) -> Iterator[Blocks]:
    """(context parameters) -> cache blocks, on one loaded model."""
    engine = open_llama(path, n_ctx=256)
    model: Model = engine._model

    def get(**params: Any) -> tuple[CacheBlock, ...]:
        context = Context(model, ContextParams(**params))
        context.close()
        return context.cache_blocks

    yield get
    engine.close()


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Blocks]:
    yield from blocks_of(smollm2_path())


@pytest.fixture(scope="module")
def gemma() -> Iterator[Blocks]:
    yield from blocks_of(gemma_path())


def test_smollm2_at_8192(smollm2: Blocks) -> None:
    assert smollm2(n_ctx=8192) == (CacheBlock("full", "CPU", 180 * MIB, 8192),)
    assert 180 * MIB == 8192 * 30 * 2 * (3 * 64 * F16)


def test_quantized_caches(smollm2: Blocks) -> None:
    (both,) = smollm2(n_ctx=2048, type_k="q8_0", type_v="q8_0", flash_attn="on")
    assert both.size_bytes == pytest.approx(2048 * 30 * 2 * 192 * Q8_0, abs=ROUNDING_BYTES)
    (keys,) = smollm2(n_ctx=2048, type_k="q8_0", flash_attn="off")
    assert keys.size_bytes == pytest.approx(2048 * 30 * 192 * (Q8_0 + F16), abs=ROUNDING_BYTES)


@pytest.mark.parametrize(("kv_unified", "cells"), [(True, 2048), (False, 512)])
def test_sequences_share_the_cells_or_split_them(smollm2: Blocks, kv_unified: bool, cells: int) -> None:
    (block,) = smollm2(n_ctx=2048, n_seq=4, kv_unified=kv_unified)
    assert block == CacheBlock("full", "CPU", 45 * MIB, cells)


@pytest.mark.slow
def test_gemma_pruned_and_full(gemma: Blocks) -> None:
    """3 full layers, 15 of a window of 512; 512 + n_ubatch cells are kept of the window."""
    full, window = gemma(n_ctx=8192, n_ubatch=512)
    assert full == CacheBlock("full", "CPU", 24 * MIB, 8192)
    assert window == CacheBlock("swa", "CPU", 15 * MIB, 1024)
    full, window = gemma(n_ctx=8192, n_ubatch=512, swa_full=True)
    assert full == CacheBlock("full", "CPU", 24 * MIB, 8192)
    assert window == CacheBlock("swa", "CPU", 120 * MIB, 8192)


def test_a_recurrent_state(open_tiny: OpenTiny) -> None:
    """4 bytes x ((d_conv - 1) x d_inner + d_state x d_inner) for each layer and sequence, f32 always."""
    (block,) = open_tiny("mamba", n_ctx=16384, n_seq=64, kv_unified=False).facts.cache_blocks
    assert (block.kind, block.device, block.cells) == ("recurrent", "CPU", 64)
    assert block.size_bytes == pytest.approx(4 * (3 * 128 + 16 * 128) * 3 * 64, abs=ROUNDING_BYTES)


def test_a_cache_over_two_devices() -> None:
    lines = [
        "llama_kv_cache:        CPU KV buffer size =    90.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =    45.50 MiB",
        "llama_kv_cache: size =  135.50 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16): ...",
    ]
    assert read_cache_blocks(lines) == (
        CacheBlock("full", "CPU", 90 * MIB, 8192),
        CacheBlock("full", "CUDA0", round(45.5 * MIB), 8192),
    )


def test_buffers_go_by_their_device() -> None:
    lines = [
        "llama_kv_cache: RPC0[10.0.0.2:50052] KV buffer size =    45.00 MiB",
        "llama_kv_cache: size =   45.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16): ...",
    ]
    (block,) = read_cache_blocks(lines, {"RPC0[10.0.0.2:50052]": "RPC1"})
    assert block == CacheBlock("full", "RPC1", 45 * MIB, 8192)


def test_a_dry_run_tells_the_sum_only() -> None:
    """It is shared by layers, of which each device's are named before."""
    lines = [
        "llama_kv_cache: layer   0: dev = CPU",
        "llama_kv_cache: layer   1: dev = CUDA0",
        "llama_kv_cache: layer   2: dev = CUDA0",
        "llama_kv_cache:        CPU KV buffer size =     0.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB",
        "llama_kv_cache: size =    3.00 MiB (   256 cells,   3 layers,  1/1 seqs), K (f16): ...",
        "llama_kv_cache: layer   3: dev = CUDA0",
        "llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB",
        "llama_kv_cache: size =    5.00 MiB (   256 cells,   1 layers,  1/1 seqs), K (f16): ...",
    ]
    assert read_cache_blocks(lines) == (
        CacheBlock("full", "CPU", MIB, 256),
        CacheBlock("full", "CUDA0", 2 * MIB, 256),
        CacheBlock("full", "CUDA0", 5 * MIB, 256),
    )


def test_compute_and_output_buffers() -> None:
    """Pinned host memory counts as the CPU's; the comparison made when a context ends is no buffer."""
    lines = [
        "llama_context:        CPU  output buffer size =     0.19 MiB",
        "sched_reserve:      CUDA0 compute buffer size =    97.12 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =     3.00 MiB",
        "sched_reserve:        CPU compute buffer size =     1.50 MiB",
        "~llama_context:        CPU compute buffer size is   1.5000 MiB, matches expectation of   1.5000 MiB",
    ]
    host = {"CUDA_Host": "CPU"}
    assert read_buffers(lines, "compute", host) == {"CUDA0": round(97.12 * MIB), "CPU": round(4.5 * MIB)}
    assert read_buffers(lines, "output", host) == {"CPU": round(0.19 * MIB)}


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("CPU", "CPU"),
        ("CPU_Mapped", "CPU"),
        ("CPU_REPACK", "CPU"),
        ("AMX", "CPU"),
        ("CUDA_Host", "CPU"),
        ("CUDA0", "CUDA0"),
        ("MTL0_Mapped", "MTL0"),
        ("MTL1_Private", "MTL1"),
        ("RPC0[my_host:50052]", "RPC0"),
    ],
)
def test_whose_a_buffer_of_weights_is(buffer: str, device: str) -> None:
    types = {
        "CUDA_Host": "CPU", "CUDA0": "CUDA0", "MTL0": "MTL0", "MTL1_Private": "MTL1",
        "RPC0[my_host:50052]": "RPC0", "CPU": "CPU",
    }  # fmt: skip
    lines = [f"load_tensors: {buffer:>12} model buffer size =    64.00 MiB"]
    assert read_buffers(lines, "model", types) == {device: 64 * MIB}


def test_devices_of_layers() -> None:
    lines = [
        "load_tensors: layer   1 assigned to device CUDA0, is_swa = 1",
        "load_tensors: layer   0 assigned to device CPU, is_swa = 0",
    ]
    assert read_layer_devices(lines) == ("CPU", "CUDA0")
    assert read_layer_devices([]) == ()


def test_other_lines_say_nothing() -> None:
    lines = ["llama_context: n_ctx = 8192", "sched_reserve: CPU compute buffer size = 0.24 MiB", ""]
    assert read_cache_blocks(lines) == ()


def test_what_auto_became() -> None:
    refused = "sched_reserve: Flash Attention not supported, set to disabled"
    assert read_flash_attention([refused], "auto") == "off"
    assert read_flash_attention([], "auto") == "on"
    assert read_flash_attention([], "off") == "off"


@pytest.mark.parametrize("asked", ["auto", "on"])
def test_a_model_without_flash_attention(asked: str) -> None:
    line = "llama_init_from_model: flash_attn is not compatible with Grok - forcing off"
    assert read_flash_attention([line], asked) == "off"


def test_a_pipeline_of_gpus() -> None:
    enabled = "llama_context: pipeline parallelism enabled"
    given_up = "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism"
    assert read_pipelined(["llama_context: n_ctx = 512", enabled, "sched_reserve: reserving ..."])
    assert not read_pipelined([enabled, given_up])
    assert not read_pipelined([])
