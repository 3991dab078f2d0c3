"""Real engines for tests: opening them, emptying them, and looking at the logits behind a token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrun.engine.api import (
    ContextParams,
    EndReason,
    EndStep,
    Engine,
    Job,
    ModelParams,
    PrefillStep,
    SamplingParams,
    Step,
    TokenStep,
)
from llmrun.engine.llama import LlamaEngine, open_engine

GREEDY = SamplingParams(temperature=0)
# Flash attention rounds to f16 inside and f16 caches round what they store; both would blur the laws.
EXACT: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}


def open_llama(path: Path, **params: Any) -> LlamaEngine:
    """Open a model on the CPU with one thread; `params` are fields of `ContextParams`."""
    context = ContextParams(**({"n_ctx": 512} | params))
    return open_engine(ModelParams(str(path), gpu_layers=0), context, lambda _: None, threading.Event())


def forget(engine: LlamaEngine) -> None:
    """Empty every sequence and take back interrupts, so that the next run is a cold one."""
    context = engine._context
    context._lib.llama_memory_clear(context._memory, True)
    for held in context._held:
        held.clear()
    engine.resume()


def pos_min(engine: LlamaEngine, seq: int = 0) -> int:
    """First position the sequence has in all its layers, by the library."""
    return int(engine._context._lib.llama_memory_seq_pos_min(engine._context._memory, seq))


def pos_max(engine: LlamaEngine, seq: int = 0) -> int:
    """Last position the sequence has, by the library; -1 when it is empty."""
    return int(engine._context._lib.llama_memory_seq_pos_max(engine._context._memory, seq))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of one job did. `logits` are those its first token was drawn from."""

    tokens: list[int]
    reason: EndReason
    reused: int
    logits: list[float]


def run_one(
    engine: LlamaEngine,
    prompt: Sequence[int],
    max_tokens: int | None = 1,
    sampling: SamplingParams = GREEDY,
    seq: int = 0,
) -> Outcome:
    """Run one job to its end."""
    tokens: list[int] = []
    logits: list[float] = []
    reused, reason = -1, None
    for step in engine.run([Job(seq, prompt, sampling, max_tokens)]):
        match step:
            case PrefillStep(done=0):
                reused = step.reused
            case TokenStep():
                logits = logits or last_logits(engine)
                tokens.append(step.token)
            case EndStep():
                reason = step.reason
    assert reason is not None
    return Outcome(tokens, reason, reused, logits)


def last_logits(engine: LlamaEngine) -> list[float]:
    """Logits of the last position evaluated."""
    context = engine._context
    pointer = context._lib.llama_get_logits_ith(context.handle, -1)
    return list(pointer[: engine.facts.n_vocab])


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Largest difference between two rows of logits."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def by_sequence(steps: Sequence[Step]) -> tuple[dict[int, list[int]], dict[int, EndReason]]:
    """Tokens and end of each sequence of a run. Each must end exactly once, after its last step."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, EndReason] = {}
    for step in steps:
        assert step.seq not in ends, f"{step} after the end"
        tokens.setdefault(step.seq, [])
        if isinstance(step, TokenStep):
            tokens[step.seq].append(step.token)
        elif isinstance(step, EndStep):
            ends[step.seq] = step.reason
    assert ends.keys() == tokens.keys()
    return tokens, ends


def stop_after(engine: Engine, jobs: Sequence[Job], counts: dict[int, int]) -> Iterator[Step]:
    """The steps of a run in which a sequence is asked to stop on its given token."""
    run = engine.run(jobs)
    seen = dict.fromkeys(counts, 0)
    for step in run:
        yield step
        if isinstance(step, TokenStep) and step.seq in counts:
            seen[step.seq] += 1
            if seen[step.seq] == counts[step.seq]:
                run.stop(step.seq)


OpenTiny = Callable[..., LlamaEngine]
"""(architecture, **context parameters) -> an empty engine, shared by all tests that ask for the same."""
