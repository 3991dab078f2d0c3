"""K/V cache and recurrent state against the engine's own log, on models of each memory kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import CacheBlock, ContextParams
from llmrun.engine.context import Context
from llmrun.errors import UsageError
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import (
    bytes_per_token,
    cache_sizes,
    cells_of,
    layer_state_bytes,
    output_bytes,
    refusal,
    row_bytes,
)
from llmrun.memory.numbers import from_numbers
from llmrun.memory.plan import MemoryPlan
from llmrun.units import MIB

from tests.support.engines import open_llama
from tests.support.models import gemma_path, smollm2_path
from tests.support.tiny import Arch, write_tiny

ROUNDING_BYTES = 0.005 * MIB + 1
ARCHS: tuple[Arch, ...] = ("llama", "gemma3", "mamba")
LLAMA_8B = from_numbers(layers=32, kv_heads=8, head_dim=128, params=8e9)

Pair = tuple[MemoryFacts, Callable[..., tuple[CacheBlock, ...]]]


def on_model(path: Path) -> Iterator[Pair]:
    """The facts of a file, and what a real context on it logs."""
    engine = open_llama(path, n_ctx=256)

    def blocks(**params: Any) -> tuple[CacheBlock, ...]:
        context = Context(engine._model, ContextParams(**params))
        context.close()
        return context.cache_blocks

    yield memory_facts(read_header(path)), blocks
    engine.close()


@pytest.fixture(scope="module", params=ARCHS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("cache")
    yield from on_model(write_tiny(folder / f"{request.param}.gguf", request.param))


def compare(pair: Pair, settings: dict[str, Any]) -> None:
    facts, blocks = pair
    plan = MemoryPlan(**settings)
    computed = [(s.kind, s.cells, s.size_bytes) for s in cache_sizes(facts, plan)]
    if state := sum(layer_state_bytes(layer, plan) for layer in facts.layers):
        computed.append(("recurrent", plan.n_seq, state))  # type: ignore[arg-type]
    logged = blocks(**settings)
    assert [(b.kind, b.cells) for b in logged] == [(kind, cells) for kind, cells, _ in computed]
    for block, (_, _, size_bytes) in zip(logged, computed, strict=True):
        assert size_bytes == pytest.approx(block.size_bytes, abs=ROUNDING_BYTES)


CONTEXTS = [
    {"n_ctx": n_ctx, "n_ubatch": n_ubatch, "n_seq": n_seq, "kv_unified": kv_unified, "swa_full": swa_full}
    for n_ctx, n_ubatch, (n_seq, kv_unified), swa_full in itertools.product(
        (300, 4096, 16384), (64, 512), ((1, True), (3, True), (3, False)), (False, True)
    )
]
TYPES = [
    {"n_ctx": 8192, "flash_attn": flash_attn, "type_k": type_k, "type_v": type_v}
    for flash_attn, type_k, type_v in (
        ("on", "f32", "f16"),
        ("on", "bf16", "f32"),
        ("off", "f16", "f16"),
        ("off", "f32", "bf16"),
    )
]


def test_cells_of_tiny_models(tiny: Pair) -> None:
    for settings in CONTEXTS:
        compare(tiny, settings)


@pytest.mark.parametrize("settings", TYPES, ids=lambda s: f"{s['flash_attn']}-{s['type_k']}-{s['type_v']}")
def test_types_of_tiny_models(tiny: Pair, settings: dict[str, Any]) -> None:
    compare(tiny, settings)


def test_smollm2() -> None:
    for pair in on_model(smollm2_path()):
        facts, _ = pair
        assert [s.size_bytes for s in cache_sizes(facts, MemoryPlan())] == [180 * MIB]
        for type_k, type_v in (("q8_0", "q8_0"), ("q4_0", "q5_1"), ("iq4_nl", "q4_1"), ("q5_0", "f16")):
            compare(pair, {"n_ctx": 2048, "flash_attn": "on", "type_k": type_k, "type_v": type_v})


@pytest.mark.slow
def test_gemma() -> None:
    for pair in on_model(gemma_path()):
        facts, _ = pair
        assert [s.size_bytes for s in cache_sizes(facts, MemoryPlan())] == [24 * MIB, 15 * MIB]
        compare(pair, {"n_ctx": 8192, "flash_attn": "on"})
        compare(pair, {"n_ctx": 8192, "n_seq": 4, "kv_unified": False, "flash_attn": "off"})
        compare(pair, {"n_ctx": 8192, "flash_attn": "on", "type_k": "q8_0", "type_v": "q4_0"})


def test_worked_examples() -> None:
    """32 layers, 8 KV heads, head size 128, f16."""
    assert bytes_per_token(LLAMA_8B, MemoryPlan()) == 131_072
    (at_20k,) = cache_sizes(LLAMA_8B, MemoryPlan(n_ctx=20_000))
    assert round(at_20k.size_bytes / 1e9, 1) in (2.6, 2.7)
    assert 20_000 * 131_072 == 2_621_440_000
    (at_128k,) = cache_sizes(LLAMA_8B, MemoryPlan(n_ctx=128 * 1024))
    assert at_128k.size_bytes == 131_072 * 131_072 == 17_179_869_184


@pytest.mark.parametrize(
    ("type_name", "width", "size_bytes"),
    [("f32", 64, 256), ("f16", 64, 128), ("q8_0", 64, 68), ("q4_0", 64, 36), ("q5_1", 32, 24), ("f16", 0, 0)],
)
def test_row_bytes(type_name: str, width: int, size_bytes: int) -> None:
    assert row_bytes(type_name, width) == size_bytes


def test_an_unknown_type_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="q9_9"):
        row_bytes("q9_9", 32)


def test_sequences_and_batches_round_as_the_engine_does() -> None:
    cells = cells_of(LLAMA_8B, MemoryPlan(n_ctx=8192, n_seq=256, kv_unified=False))
    assert (cells.n_ctx, cells.n_ctx_seq, cells.n_stream) == (65_536, 256, 256)
    assert cells_of(LLAMA_8B, MemoryPlan(n_ctx=100, n_ubatch=512)).n_ubatch == 100
    assert cells_of(LLAMA_8B, MemoryPlan(n_batch=1, n_seq=4)).n_batch == 4


def test_output_is_a_row_of_logits_a_sequence() -> None:
    assert output_bytes(replace(LLAMA_8B, n_vocab=1000), MemoryPlan(n_seq=3)) == 4 * 1000 * 3


@pytest.mark.parametrize(
    ("facts", "plan", "reason"),
    [
        (LLAMA_8B, MemoryPlan(), ""),
        (LLAMA_8B, MemoryPlan(type_k="q8_0", type_v="q8_0"), ""),
        (LLAMA_8B, MemoryPlan(type_k="q8_0", flash_attn="off"), ""),
        (LLAMA_8B, MemoryPlan(type_v="q8_0", flash_attn="off"), "flash attention"),
        (LLAMA_8B, MemoryPlan(n_seq=257), "256"),
        (from_numbers(layers=2, kv_heads=2, head_dim=80, params=1e8), MemoryPlan(type_k="q8_0"), "80"),
        (replace(LLAMA_8B, mla=True), MemoryPlan(type_k="q8_0"), "one type"),
    ],
)
def test_refusals(facts: MemoryFacts, plan: MemoryPlan, reason: str) -> None:
    found = refusal(facts, plan)
    assert reason in found
    assert bool(found) == bool(reason)
