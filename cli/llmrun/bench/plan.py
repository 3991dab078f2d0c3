"""Which tests a run has, in which order, and which of them share a loaded model.

The order is llama-bench's: models outermost, then what needs a new context, depth, and at each depth all
prompts, all outputs, all pairs (get_cmd_params_instances in tools/llama-bench/llama-bench.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from llmrun.reports.bench import BenchTest, TestKind

Settings = tuple[tuple[str, str], ...]
"""Names of settings and their texts, as the command line would give them."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run on one context of a model. `settings` are those that the run names itself."""

    model: str
    settings: Settings
    n_parallel: int
    tests: tuple[BenchTest, ...]

    @property
    def cells(self) -> int:
        """Positions that each sequence needs at most."""
        return max(test.cells for test in self.tests)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Lists of everything that varies. `varying`: texts of settings by name; what is not there is as the
    user's settings have it."""

    models: tuple[str, ...]
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    pairs: tuple[tuple[int, int], ...] = ()
    n_depth: tuple[int, ...] = (0,)
    n_parallel: tuple[int, ...] = (1,)
    varying: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reps: int = 5
    warmup: bool = True
    delay_s: float = 0.0

    @property
    def has_pictures(self) -> bool:
        """Whether something varies that rates can be drawn over."""
        return any(len(set(values)) > 1 for values in (self.models, self.n_depth, self.n_parallel))

    @property
    def n_subjects(self) -> int:
        """Models times combinations of settings, counted without making them."""
        return len(self.models) * prod(len(texts) for texts in self.varying.values() if texts)

    @property
    def n_tests(self) -> int:
        """How many tests `groups` holds, counted likewise."""
        counts = sum(map(bool, (*self.n_prompt, *self.n_gen))) + len(self.pairs)
        return self.n_subjects * len(self.n_parallel) * len(self.n_depth) * counts

    def groups(self) -> tuple[Group, ...]:
        """The contexts in order, each with its tests; none where all counts are 0."""
        found = (
            Group(model, settings, count, tuple(self._tests(count)))
            for model, settings, count in product(self.models, self.settings(), self.n_parallel)
        )
        return tuple(group for group in found if group.tests)

    def settings(self) -> tuple[Settings, ...]:
        """Every combination of what varies."""
        names = [name for name, texts in self.varying.items() if texts]
        combined = product(*(self.varying[name] for name in names))
        return tuple(tuple(zip(names, texts, strict=True)) for texts in combined)

    def _tests(self, n_parallel: int) -> Iterator[BenchTest]:
        for depth in self.n_depth:
            for count in filter(None, self.n_prompt):
                yield BenchTest("pp", count, 0, depth, n_parallel)
            for count in filter(None, self.n_gen):
                yield BenchTest("tg", 0, count, depth, n_parallel)
            for prompt, output in self.pairs:
                yield BenchTest(_kind(prompt, output), prompt, output, depth, n_parallel)


def _kind(prompt: int, output: int) -> TestKind:
    if prompt and output:
        return "pg"
    return "pp" if prompt else "tg"
