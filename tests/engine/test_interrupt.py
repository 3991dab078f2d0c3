"""Interrupts, by the order of what happens: no test here looks at a clock."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from llmrun.engine.api import EndStep, Job, PrefillStep, Step, TokenStep
from llmrun.engine.bindings import library
from llmrun.engine.llama import LlamaEngine

from tests.support.engines import (
    EXACT,
    GREEDY,
    OpenTiny,
    by_sequence,
    distance,
    open_llama,
    pos_max,
    run_one,
)
from tests.support.tiny import Arch

ARCHS: tuple[Arch, ...] = ("llama", "gemma3", "mamba")
PROMPT = [3 + i * 7 % 250 for i in range(700)]
PARAMS: dict[str, Any] = {**EXACT, "n_ctx": 1024, "n_ubatch": 64}


def interrupt_inside(monkeypatch: pytest.MonkeyPatch, engine: LlamaEngine, call: int) -> list[int]:
    """Interrupt when the library has been entered for the `call`th time; returns its codes."""
    lib: Any = engine._context._lib
    decode = lib.llama_decode
    codes: list[int] = []

    def entered(*arguments: Any) -> int:
        if len(codes) + 1 == call:
            engine.interrupt()
        code = int(decode(*arguments))
        codes.append(code)
        return code

    monkeypatch.setattr(lib, "llama_decode", entered)
    return codes


def check_next_run(open_tiny: OpenTiny, engine: LlamaEngine, arch: Arch) -> None:
    """After an interrupt the books agree with the library, and a resumed engine answers as a cold one.

    The second prompt follows closely on what is held, before a recurrent state would have faded.
    """
    held = list(engine.held(0))
    assert pos_max(engine) == len(held) - 1
    assert held == PROMPT[: len(held)] or held[: len(PROMPT)] == PROMPT
    engine.resume()
    following = [*held, 9, 8] if held else PROMPT[:3]
    warm = run_one(engine, following, max_tokens=5)
    assert warm.reused == len(held)
    cold = run_one(open_tiny(arch, copy=1, **PARAMS), following, max_tokens=5)
    assert warm.tokens == cold.tokens
    assert distance(warm.logits, cold.logits) < 2e-2  # the reason is in test_reuse_law.py


def test_while_the_context_is_made_anew(tiny_path: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag that another thread holds is the new context's, too."""
    engine = open_llama(tiny_path["llama"], n_ctx=256)
    held = engine._context.abort
    create = library().llama_init_from_model

    def interrupted(*arguments: Any) -> Any:
        held.set()
        return create(*arguments)

    monkeypatch.setattr(library(), "llama_init_from_model", interrupted)
    assert engine.resize(512)
    assert list(engine.run([Job(0, PROMPT[:9], GREEDY, 5)]))[-1] == EndStep(0, "interrupted")
    engine.resume()
    assert run_one(engine, PROMPT[:9], max_tokens=5).reason == "length"
    engine.close()


@pytest.mark.parametrize("arch", ARCHS)
class TestInsideTheLibrary:
    def test_during_prefill(self, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, arch: Arch) -> None:
        engine = open_tiny(arch, **PARAMS)
        codes = interrupt_inside(monkeypatch, engine, call=5)
        steps = list(engine.run([Job(0, PROMPT, GREEDY, 5)]))
        monkeypatch.undo()
        assert codes == [0, 0, 0, 0, 2]
        assert steps[-2:] == [PrefillStep(0, 256, 700, 0), EndStep(0, "interrupted")]
        # a state that cannot be taken back is given up; K/V of whole slices stays
        assert len(engine.held(0)) == (0 if arch == "mamba" else 256)
        check_next_run(open_tiny, engine, arch)

    def test_during_decode(self, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, arch: Arch) -> None:
        engine = open_tiny(arch, **PARAMS)
        codes = interrupt_inside(monkeypatch, engine, call=11 + 4)
        tokens, ends = by_sequence(list(engine.run([Job(0, PROMPT, GREEDY)])))
        monkeypatch.undo()
        assert codes == [0] * 14 + [2]
        assert ends == {0: "interrupted"}
        assert len(tokens[0]) == 4
        assert list(engine.held(0)) == ([] if arch == "mamba" else [*PROMPT, *tokens[0][:-1]])
        check_next_run(open_tiny, engine, arch)


def interrupt_from_a_thread(engine: LlamaEngine, during: type[Step]) -> list[Step]:
    """Run with another thread that interrupts once a step of that kind was seen."""
    seen = threading.Event()

    def press() -> None:
        seen.wait()
        engine.interrupt()

    thread = threading.Thread(target=press)
    thread.start()
    steps: list[Step] = []
    for step in engine.run([Job(0, PROMPT, GREEDY)]):
        steps.append(step)
        if isinstance(step, during):
            seen.set()
    thread.join()
    return steps


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("during", [PrefillStep, TokenStep])
def test_from_another_thread_at_any_moment(open_tiny: OpenTiny, arch: Arch, during: type[Step]) -> None:
    engine = open_tiny(arch, **PARAMS)
    steps = interrupt_from_a_thread(engine, during)
    _, ends = by_sequence(steps)
    assert ends[0] in ("interrupted", "context")  # the window may fill before the thread gets its turn
    n_held = len(engine.held(0))
    assert pos_max(engine) == n_held - 1
    if ends[0] == "interrupted" and n_held < 1000:  # room for what the check adds
        check_next_run(open_tiny, engine, arch)


def test_before_a_run_nothing_is_evaluated_and_the_cache_stays(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama", **PARAMS)
    run_one(engine, PROMPT[:100])
    engine.interrupt()
    outcome = run_one(engine, PROMPT, max_tokens=5)
    assert (outcome.tokens, outcome.reason, outcome.reused) == ([], "interrupted", 100)
    assert list(engine.held(0)) == PROMPT[:100]
    engine.resume()
    assert run_one(engine, PROMPT, max_tokens=5).reason == "length"


def test_every_sequence_of_a_run_ends(open_tiny: OpenTiny) -> None:
    engine = open_tiny("llama", n_ctx=768, n_seq=3)
    run = engine.run([Job(seq, PROMPT[:50], GREEDY) for seq in range(3)])
    steps = []
    for step in run:
        steps.append(step)
        if isinstance(step, TokenStep) and step.seq == 1:
            engine.interrupt()
    tokens, ends = by_sequence(steps)
    assert ends == dict.fromkeys(range(3), "interrupted")
    assert {seq: pos_max(engine, seq) + 1 for seq in (0, 1)} == {
        seq: 50 + len(tokens[seq]) - 1 for seq in (0, 1)
    }
