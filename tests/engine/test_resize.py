"""A context that takes another's place: for several sequences, on another device, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from llmrun.engine import llama
from llmrun.engine.api import ContextParams, EndStep, Job, ModelParams
from llmrun.engine.context import Context
from llmrun.engine.llama import LlamaEngine, open_engine
from llmrun.errors import DoesNotFit, EngineFailure

from tests.support.alone import alone
from tests.support.archs import write_arch
from tests.support.engines import EXACT, GREEDY, by_sequence, distance, open_llama, run_one
from tests.support.rpc import rpc_server
from tests.support.tiny import Arch

N_CTX = 512
PROMPT = [3 + i * 37 % 200 for i in range(300)]


@contextmanager
def no_context_of(sizes: Callable[[int], bool]) -> Iterator[None]:
    """While active the library has no room for contexts of some sizes."""

    def refusing(model: object, params: ContextParams, *rest: object) -> Context:
        if sizes(params.n_ctx):
            raise DoesNotFit("no room")
        return Context(model, params, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "Context", refusing)
        yield


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "falcon-h1"])
def test_no_room_for_a_larger_one_changes_nothing(tiny_path: dict[Arch, Path], arch: Arch) -> None:
    with closing(open_llama(tiny_path[arch], **EXACT)) as engine:
        first = run_one(engine, PROMPT, max_tokens=8)
        held = list(engine.held(0))
        with no_context_of(lambda n_ctx: n_ctx > N_CTX):
            assert not engine.resize(4 * N_CTX)
        assert (engine.facts.n_ctx, list(engine.held(0))) == (N_CTX, held)
        going_on = run_one(engine, [*held, *first.tokens[-1:]])
        assert going_on.reused == len(held)


def test_no_room_for_any_is_an_error_until_there_is_some(tiny_path: dict[Arch, Path]) -> None:
    with closing(open_llama(tiny_path["llama"], **EXACT)) as engine:
        before = run_one(engine, PROMPT, max_tokens=8)
        state = engine.save(0)
        with no_context_of(lambda _: True):
            with pytest.raises(DoesNotFit):
                engine.resize(4 * N_CTX)
            assert list(engine.held(0)) == []
            assert engine.pos_min(0) == 0
            assert not engine.restore(0, state, PROMPT)
            with pytest.raises(EngineFailure):
                engine.save(0)
            with pytest.raises(DoesNotFit):
                run_one(engine, PROMPT)
        after = run_one(engine, PROMPT, max_tokens=8)
        assert (after.reused, after.tokens) == (0, before.tokens)
        assert engine.facts.n_ctx == N_CTX


@pytest.mark.parametrize("unified", [True, False])
def test_several_sequences(tiny_path: dict[Arch, Path], unified: bool) -> None:
    size, shared = (2 * N_CTX, 1) if unified else (4 * N_CTX, 2)
    params = EXACT | {"n_seq": 2, "kv_unified": unified, "n_ubatch": 16}
    with (
        closing(open_llama(tiny_path["gemma3"], **params, n_ctx=2 * N_CTX)) as engine,
        closing(open_llama(tiny_path["gemma3"], **EXACT, n_ubatch=16, n_ctx=4 * N_CTX)) as large,
    ):
        for seq in (0, 1):
            run_one(engine, PROMPT[seq:], max_tokens=4, seq=seq)
        assert engine.resize(2 * size)
        assert engine.facts.n_ctx_seq == 2 * size // shared
        for seq in (0, 1):
            prompt = [*engine.held(seq), *PROMPT]
            outcome = run_one(engine, prompt, seq=seq)
            assert outcome.reused == len(prompt) - len(PROMPT)
            assert distance(outcome.logits, run_one(large, prompt).logits) < 2e-2


@pytest.mark.parametrize("lost", [False, True])
def test_answers_under_way_go_on_in_the_larger_one(
    tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Also those of sequences that were not at their end, and where nothing can be moved."""
    jobs = [Job(0, PROMPT[:100], GREEDY, 350), Job(1, PROMPT[50:], GREEDY, 250)]
    with (
        closing(open_llama(tiny_path["llama"], **EXACT, n_seq=2, n_ctx=N_CTX)) as engine,
        closing(open_llama(tiny_path["llama"], **EXACT, n_ctx=4 * N_CTX)) as large,
    ):
        if lost:
            monkeypatch.setattr(Context, "restore", lambda *_: False)
        run = engine.run(jobs)
        seen = []
        for step in run:
            if step in (EndStep(0, "context"), EndStep(1, "context")):
                assert engine.resize(4 * N_CTX)
                run.go_on(step.seq)
            else:
                seen.append(step)
        tokens, ends = by_sequence(seen)
        assert ends == {0: "length", 1: "length"}
        for job in jobs:
            assert tokens[job.seq] == run_one(large, job.prompt, max_tokens=job.max_tokens).tokens
            assert list(engine.held(job.seq)) == [*job.prompt, *tokens[job.seq][:-1]]


def open_offloaded(path: Path, server: str, n_ctx: int) -> LlamaEngine:
    return open_engine(
        ModelParams(str(path), gpu_layers=99, rpc=(server,)),
        ContextParams(n_ctx=n_ctx, n_ubatch=32, **EXACT),
        lambda _: None,
        threading.Event(),
    )


def test_a_cache_on_another_device_moves_by_way_of_main_memory(tmp_path: Path) -> None:
    alone(grow_on_a_server, write_arch(tmp_path / "m.gguf", "llama", n_layer=4))


def grow_on_a_server(model: str) -> None:
    path = Path(model)
    with rpc_server() as server, rpc_server() as other:
        with closing(open_offloaded(path, server, N_CTX)) as engine:
            first = run_one(engine, PROMPT, max_tokens=4)
            assert {block.device for block in engine.facts.cache_blocks} == {"RPC0"}
            size_bytes = sum(block.size_bytes for block in engine.facts.cache_blocks)
            assert engine.resize(2 * N_CTX)
            assert sum(block.size_bytes for block in engine.facts.cache_blocks) == 2 * size_bytes
            assert {block.device for block in engine.facts.cache_blocks} == {"RPC0"}
            prompt = [*PROMPT, *first.tokens, *PROMPT]
            outcome = run_one(engine, prompt)
            assert outcome.reused == len(PROMPT) + len(first.tokens) - 1
        with closing(open_offloaded(path, other, 2 * N_CTX)) as large:
            assert distance(outcome.logits, run_one(large, prompt).logits) < 1e-3
