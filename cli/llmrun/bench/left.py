"""How long the rest of a run takes, from the rates seen so far."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.reports.bench import BenchTest


class TimeLeft:
    """Learns tokens a second of prompt and output, and adds up what is still to be done."""

    def __init__(self, reps: int, *, warmup: bool, delay_s: float) -> None:
        self._reps, self._warmup, self._delay_s = reps, warmup, delay_s
        self._rates: dict[tuple[str, int], float] = {}

    def rounds(self, test: BenchTest) -> int:
        """Repetitions and what comes before them: a cached request always needs one to fill the cache."""
        return self._reps + (self._warmup or test.cache == "cached")

    def learn(self, test: BenchTest, taken_s: float) -> None:
        """A repetition of `test` took so long; only tests of one phase teach something."""
        if taken_s > 0 and not (test.n_prompt and test.n_gen):
            self._rates["pp" if test.n_prompt else "tg", test.n_parallel] = test.n_tokens / taken_s

    def _rate(self, phase: str, n_parallel: int) -> float | None:
        alone = self._rates.get((phase, 1))
        return self._rates.get((phase, n_parallel), alone)

    def seconds(self, tests: Sequence[BenchTest], rounds_done: int = 0) -> float | None:
        """For `tests`, of which the first has run `rounds_done` rounds. None while a rate is not known."""
        total = 0.0
        for index, test in enumerate(tests):
            begun = rounds_done if index == 0 else 0
            prompt, output = self._rate("pp", test.n_parallel), self._rate("tg", test.n_parallel)
            rounds = self.rounds(test) - begun
            read = test.n_parallel * (
                (test.n_prompt - test.n_cached) * rounds + (0 if begun else test.n_depth)
            )
            made = test.n_parallel * test.n_gen * rounds
            if (read and prompt is None) or (made and output is None):
                return None
            total += 0.0 if begun else self._delay_s
            total += read / prompt if prompt else 0.0
            total += made / output if output else 0.0
        return total
