"""Measures one test on an open engine, as llama-bench does.

A repetition begins with the context at the test's depth, which is filled outside the timed part. Timed are
the evaluation of a prompt in batches of `n_batch` tokens up to the moment the device is done, and then output
tokens one step after the other, each step waited for. Tokens are random, the first one BOS where the model
wants it; nothing is tokenised, sampled or shown. With several sequences every batch and step holds tokens of
all of them, as in llama-batched-bench. One round before the first repetition, an output's a single step,
warms up caches and clocks (test_prompt and test_gen in tools/llama-bench/llama-bench.cpp).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llmrun.app.worker import Stop
from llmrun.engine.api import Engine, State
from llmrun.errors import EngineFailure, Interrupted
from llmrun.metrics.clock import Clock
from llmrun.reports.bench import BenchTest

Pairs = list[tuple[int, int]]

_SEED = 0
_BILLION = 1_000_000_000


class RateRun:
    """One test's rounds on one engine. `samples_ns` grows with every repetition."""

    def __init__(self, engine: Engine, test: BenchTest, clock: Clock, stop: Stop) -> None:
        self._engine, self._test, self._clock, self._stop = engine, test, clock, stop
        self._random = random.Random(_SEED)
        self._first = engine.tokenize("", add_special=True, parse_special=False)[:1]
        self._filled = False
        self._deep: list[tuple[State, list[int]]] = []
        self.samples_ns: list[int] = []

    def warm_up(self, delay_s: float, *, wanted: bool) -> None:
        """Wait, fill the context up to the test's depth, run the round that is not counted.

        Raises:
            Interrupted: the user stopped it.
            EngineFailure: the engine fails.
        """
        if delay_s and self._stop.cancelled.wait(delay_s):
            raise Interrupted("interrupted")
        self._to_depth()
        if wanted:
            self._prompt(self._tokens(self._test.n_prompt))
            self._steps(self._tokens(min(1, self._test.n_gen)))

    def repeat(self) -> float:
        """One repetition; returns its seconds. Raises as `warm_up`."""
        self._to_depth()
        prompt, output = self._tokens(self._test.n_prompt), self._tokens(self._test.n_gen)
        with _no_pauses():
            began_s = self._clock()
            self._prompt(prompt)
            self._steps(output)
            taken_s = self._clock() - began_s
        self.samples_ns.append(max(1, round(taken_s * _BILLION)))
        return taken_s

    def _tokens(self, count: int) -> list[list[int]]:
        """Random tokens for each sequence."""
        n_vocab, draw = self._engine.facts.n_vocab, self._random.randrange
        found = [[draw(n_vocab) for _ in range(count)] for _ in range(self._test.n_parallel)]
        if self._first and count:
            for tokens in found:
                tokens[0] = self._first[0]
        return found

    def _prompt(self, tokens: Sequence[Sequence[int]]) -> None:
        self._feed([(seq, token) for seq, row in enumerate(tokens) for token in row])

    def _steps(self, tokens: Sequence[Sequence[int]]) -> None:
        for step in zip(*tokens, strict=True):
            self._feed(list(enumerate(step)))

    def _feed(self, pairs: Pairs) -> None:
        if not pairs:
            return
        result = self._engine.feed(pairs)
        if result == "aborted":
            raise Interrupted("interrupted")
        if result == "full":
            raise EngineFailure("the context has no room for the test", "take smaller counts")

    def _empty(self) -> None:
        for seq in range(self._test.n_parallel):
            self._engine.rewind(seq, 0)

    def _to_depth(self) -> None:
        """Leave exactly the first tokens of each sequence, evaluating them where they are not held."""
        depth = self._test.n_depth
        kept = [self._engine.rewind(seq, depth) for seq in range(self._test.n_parallel)]
        if all(count == depth for count in kept):
            return
        self._empty()
        if self._deep and all(self._engine.restore(seq, *deep) for seq, deep in enumerate(self._deep)):
            return
        self._empty()
        self._prompt(self._tokens(depth))
        if self._filled:  # it cannot go back: a copy spares further evaluations
            seqs = range(self._test.n_parallel)
            self._deep = [(self._engine.save(seq), list(self._engine.held(seq))) for seq in seqs]
        self._filled = True


@contextmanager
def _no_pauses() -> Iterator[None]:
    """No garbage collection meanwhile: a pause would be counted as the engine's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
