"""The steps from the textbook's size to the real one, and models from plain numbers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from llmrun.errors import UsageError
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import cache_sizes, layer_state_bytes
from llmrun.memory.explain import explain
from llmrun.memory.numbers import from_numbers
from llmrun.memory.plan import MemoryPlan

from tests.support.archs import ARCHS, write_arch

PLANS = [
    MemoryPlan(n_ctx=1000),
    MemoryPlan(n_ctx=1000, n_seq=3, kv_unified=False, flash_attn="off"),
    MemoryPlan(n_ctx=4096, type_k="q8_0", type_v="q8_0", n_seq=2),
]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_last_step_is_what_is_reserved(arch: str, tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_arch(tmp_path / "m.gguf", arch)))
    for plan in PLANS:
        steps = explain(facts, plan)
        reserved = sum(size.size_bytes for size in cache_sizes(facts, plan))
        reserved += sum(layer_state_bytes(layer, plan) for layer in facts.layers)
        assert steps[-1].total_bytes == reserved
        totals = [step.total_bytes for step in steps]
        assert all(a != b for a, b in itertools.pairwise(totals))


def test_a_plain_model_needs_no_correction() -> None:
    facts = from_numbers(layers=32, kv_heads=8, head_dim=128, params=8e9)
    (only,) = explain(facts, MemoryPlan(n_ctx=131_072))
    assert only.total_bytes == 17_179_869_184
    assert "2 (K and V) x 32 layers x 8 KV heads x 128" in only.text


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("gemma3", "window of 64 tokens"),
        ("deepseek2", "one latent row"),
        ("mamba", "recurrent state"),
        ("glm4moe", "predict"),
        ("gemma3n", "20 of 22 layers"),
    ],
)
def test_each_correction_is_named(arch: str, words: str, tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_arch(tmp_path / "m.gguf", arch)))
    assert any(words in step.text for step in explain(facts, MemoryPlan(n_ctx=4096)))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n_ctx", [1, 4096])
def test_counts_agree_with_their_nouns(arch: str, n_ctx: int, tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_arch(tmp_path / "m.gguf", arch)))
    for step in explain(facts, MemoryPlan(n_ctx=n_ctx)):
        found = re.findall(r"(?<![\d,])(\d[\d,]*) (?:KV )?(layer|head|token|sequence)(s?)\b", step.text)
        assert all((count == "1") == (not s) for count, _, s in found if "of" not in step.text), step.text
        assert not re.search(r"(?<![\d,])1 layer keep\b|(?<!\b1) layer keeps\b", step.text)


def test_one_of_each_is_singular() -> None:
    (only, *_) = explain(from_numbers(layers=1, kv_heads=1, head_dim=64, params=1e6), MemoryPlan(n_ctx=256))
    assert "1 layer x 1 KV head x 64 numbers" in only.text


def test_weights_from_numbers_are_exact() -> None:
    for params, quant, bits in ((8e9, "Q4_K_M", 4.8944), (1_234_567, "f16", 16), (7e10, "q8_0", 8.5008)):
        facts = from_numbers(layers=7, kv_heads=2, head_dim=64, params=params, quant=quant)
        assert sum(w.size_bytes for w in facts.weights) == int(params * bits / 8)
        assert sum(w.n_params for w in facts.weights) == int(params)
        assert min(w.size_bytes for w in facts.weights) >= 0


@pytest.mark.parametrize(
    "numbers",
    [{"layers": 0}, {"kv_heads": 0}, {"head_dim": -1}, {"params": 0}, {"layers": 10_000}, {"quant": "Q9"}],
)
def test_impossible_numbers_are_usage_errors(numbers: dict[str, Any]) -> None:
    good: dict[str, Any] = {"layers": 2, "kv_heads": 2, "head_dim": 64, "params": 1e8}
    with pytest.raises(UsageError):
        from_numbers(**(good | numbers))
