"""Sizes of caches: what a run reports equals the engine's own account to the byte."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.answer.cache_bytes import exact_blocks
from llmrun.engine.api import ContextParams, EngineFacts, ModelParams
from llmrun.engine.llama import LlamaEngine, open_engine
from llmrun.engine.probe.account import account
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.units import MIB

from tests.support.archs import write_arch

PARAMS: list[dict[str, Any]] = [
    {"n_ctx": 300},
    {"n_ctx": 1100, "n_seq": 3, "kv_unified": False, "n_ubatch": 70},
    {"n_ctx": 700, "type_k": "q8_0", "type_v": "q8_0", "flash_attn": "on", "swa_full": True},
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMRUN_CACHE_DIR", str(tmp_path / "cache"))


def opened(path: Path, model: ModelParams, context: ContextParams) -> LlamaEngine:
    facts = memory_facts(read_header(path))
    exact = partial(exact_blocks, facts)
    return open_engine(model, context, lambda _: None, threading.Event(), exact=exact)


def reported(facts: EngineFacts) -> Counter[str]:
    found: Counter[str] = Counter()
    for block in facts.cache_blocks:
        found[block.device] += block.size_bytes
    return found


def accounted(path: Path, model: ModelParams, context: ContextParams) -> Counter[str]:
    sizes = account([path], model, context, dry=True)
    assert sizes.exact
    held = Counter({d.name: d.kv_bytes + d.recurrent_bytes for d in sizes.devices})
    return +held


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize(
    "arch", ["llama", "gemma3", "gemma3n", "deepseek2", "mamba", "falcon-h1", "qwen3next"]
)
def test_a_run_reports_what_the_engine_has(tmp_path: Path, arch: str, params: dict[str, Any]) -> None:
    path = write_arch(tmp_path / "m.gguf", arch)
    model, context = ModelParams(str(path), gpu_layers=0), ContextParams(**({"flash_attn": "on"} | params))
    engine = opened(path, model, context)
    assert reported(engine.facts) == accounted(path, model, context)
    if engine.resize(2000):
        assert reported(engine.facts) == accounted(path, model, replace(context, n_ctx=2000))
    engine.close()


@pytest.fixture
def made(tmp_path: Path) -> tuple[MemoryFacts, EngineFacts]:
    path = write_arch(tmp_path / "m.gguf", "llama")
    engine = opened(path, ModelParams(str(path), gpu_layers=0), ContextParams(n_ctx=4096))
    engine.close()
    return memory_facts(read_header(path)), engine.facts


@pytest.mark.parametrize("off_bytes", [-5000, -1, 1, 5000])
def test_rounding_is_undone(made: tuple[MemoryFacts, EngineFacts], off_bytes: int) -> None:
    facts, engine = made
    (block,) = engine.cache_blocks
    rounded = replace(engine, cache_blocks=(replace(block, size_bytes=block.size_bytes + off_bytes),))
    assert exact_blocks(facts, rounded) == (block,)


def test_where_the_rules_do_not_fit_the_log_counts(made: tuple[MemoryFacts, EngineFacts]) -> None:
    facts, engine = made
    (block,) = engine.cache_blocks
    other = replace(block, size_bytes=block.size_bytes + MIB // 3)
    assert exact_blocks(facts, replace(engine, cache_blocks=(other,))) == (other,)
    unknown = replace(facts, layers=())
    assert exact_blocks(unknown, engine) == (block,)
