"""Bytes a decode step reads, checked by hand against shapes of known models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.gguf.weights import LayerShape, Weight
from llmrun.memory.numbers import from_numbers
from llmrun.memory.plan import MemoryPlan
from llmrun.memory.traffic import active_weight_bytes, context_bytes, step_bytes

from tests.support.models import gemma_path, smollm2_path
from tests.support.tiny import write_tiny

LLAMA_8B = from_numbers(layers=32, kv_heads=8, head_dim=128, params=8e9)


def header_facts(path: Path) -> MemoryFacts:
    return memory_facts(read_header(path))


def test_the_textbook_cache_is_read_once_a_token() -> None:
    assert context_bytes(LLAMA_8B, MemoryPlan(), 1) == 131_072
    assert context_bytes(LLAMA_8B, MemoryPlan(), 20_000) == 20_000 * 131_072
    assert context_bytes(LLAMA_8B, MemoryPlan(type_k="q8_0", type_v="q8_0"), 32) == 32 * 131_072 * 34 / 64


def test_a_tied_embedding_is_read_as_the_output() -> None:
    facts = header_facts(smollm2_path())
    assert facts.tied
    assert active_weight_bytes(facts) == sum(weight.size_bytes for weight in facts.weights)


def test_rows_of_an_untied_embedding_are_not(tmp_path: Path) -> None:
    facts = replace(header_facts(write_tiny(tmp_path / "m.gguf", "llama")), tied=False)
    embedding = next(w for w in facts.weights if w.name == "token_embd.weight")
    assert active_weight_bytes(facts) == sum(w.size_bytes for w in facts.weights) - embedding.size_bytes


def test_windows_bound_what_their_layers_read() -> None:
    facts, plan = header_facts(gemma_path()), MemoryPlan()
    windowed = sum(layer.windowed for layer in facts.layers)
    full = len(facts.layers) - windowed
    row = context_bytes(facts, plan, 1) / len(facts.layers)
    assert (windowed, full) == (15, 3)
    assert context_bytes(facts, plan, 512) == 512 * 18 * row
    assert context_bytes(facts, plan, 8192) == 512 * windowed * row + 8192 * full * row


def test_a_state_is_read_whole_at_any_depth(tmp_path: Path) -> None:
    facts = header_facts(write_tiny(tmp_path / "m.gguf", "mamba"))
    assert context_bytes(facts, MemoryPlan(), 0) == context_bytes(facts, MemoryPlan(), 1000) > 0


@pytest.mark.parametrize(("n_seq", "share"), [(1, 0.25), (2, 1 - 0.75**2), (1000, 1.0)])
def test_of_experts_only_those_that_are_used(n_seq: int, share: float) -> None:
    layer = replace(LLAMA_8B.layers[0], shape=LayerShape(ff_expert=8, n_expert=8, n_expert_used=2))
    weights = (
        Weight("blk.0.ffn_up_exps.weight", 0, 8000, 8000, expert=True),
        Weight("blk.0.attn_q.weight", 0, 100, 100),
    )
    facts = replace(LLAMA_8B, layers=(layer,), weights=weights)
    assert active_weight_bytes(facts, n_seq) == pytest.approx(8000 * share + 100)


def test_sequences_share_the_weights_and_not_their_context() -> None:
    one, four = (step_bytes(LLAMA_8B, MemoryPlan(), 100, n) for n in (1, 4))
    assert four - one == 3 * 100 * 131_072
