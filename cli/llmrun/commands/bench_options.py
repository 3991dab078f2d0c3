"""Options of `llmrun bench` that name lists, and the plan they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from llmrun.config.schema import MAX_SEQUENCES, MAX_THREADS
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.bench.plan import BenchPlan

FORMATS = ("md", "json", "jsonl", "csv")
MAX_TESTS = 100_000
MAX_TOKENS = 1 << 24
MAX_BATCH = 1 << 20
MAX_LAYERS = (1 << 31) - 1
_TESTS = "Tests: numbers, lists (512,1024), ranges (0-8192+1024, 64-1024*2)"
_SETTINGS = "Settings, as lists"
_FLASH = {
    "0": "off", "false": "off", "disabled": "off", "1": "on", "true": "on", "enabled": "on", "-1": "auto",
}  # fmt: skip
"""Words of llama-bench for those of the setting."""
Lists = Optional[list[str]]  # noqa: UP045

Prompts = Annotated[
    Lists,
    typer.Option("-p", "--n-prompt", metavar="N,...", help="prompt tokens (512)", rich_help_panel=_TESTS),
]
Gen = Annotated[
    Lists, typer.Option("-n", "--n-gen", metavar="N,...", help="output tokens (128)", rich_help_panel=_TESTS)
]
Pairs = Annotated[
    Lists,
    typer.Option(
        "-pg", metavar="P,N", help="a prompt and then an output, timed as one", rich_help_panel=_TESTS
    ),
]
Depth = Annotated[
    Lists,
    typer.Option(
        "-d",
        "--n-depth",
        metavar="N,...",
        help="tokens held before a test begins (0)",
        rich_help_panel=_TESTS,
    ),
]
Parallel = Annotated[
    Lists,
    typer.Option(
        "-np", "--parallel", metavar="N,...", help="sequences computed at once (1)", rich_help_panel=_TESTS
    ),
]
Reps = Annotated[int, typer.Option("-r", "--repetitions", metavar="N", min=1, max=10_000, help="repetitions")]
Delay = Annotated[
    float,
    typer.Option("--delay", metavar="S", min=0, max=3600, help="seconds to cool down before each test"),
]
Batch = Annotated[
    Lists, typer.Option("-b", "--batch", metavar="N,...", help="logical batch", rich_help_panel=_SETTINGS)
]
Ubatch = Annotated[
    Lists, typer.Option("-ub", "--ubatch", metavar="N,...", help="physical batch", rich_help_panel=_SETTINGS)
]
Threads = Annotated[
    Lists,
    typer.Option(
        "-t",
        "--threads",
        metavar="N,...",
        help="threads, of prompt and output alike",
        rich_help_panel=_SETTINGS,
    ),
]
Layers = Annotated[
    Lists,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        metavar="N,...",
        help="layers on the GPU; auto, all (or -1)",
        rich_help_panel=_SETTINGS,
    ),
]
CacheK = Annotated[
    Lists,
    typer.Option(
        "-ctk", "--cache-type-k", metavar="TYPE,...", help="format of cached keys", rich_help_panel=_SETTINGS
    ),
]
CacheV = Annotated[
    Lists,
    typer.Option(
        "-ctv",
        "--cache-type-v",
        metavar="TYPE,...",
        help="format of cached values",
        rich_help_panel=_SETTINGS,
    ),
]
Flash = Annotated[
    Lists,
    typer.Option("-fa", "--flash-attn", metavar="WORD,...", help="on, off, auto", rich_help_panel=_SETTINGS),
]
Output = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("-o", "--output", metavar="|".join(FORMATS), help="format of the records on stdout"),
]


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What the options say, each as often as it was given."""

    n_prompt: Lists
    n_gen: Lists
    pairs: Lists
    depth: Lists
    parallel: Lists
    n_batch: Lists
    n_ubatch: Lists
    n_threads: Lists
    n_gpu_layers: Lists
    type_k: Lists
    type_v: Lists
    flash_attn: Lists

    @property
    def given(self) -> bool:
        """Whether any of them is on the command line."""
        return any(getattr(self, option.name) for option in fields(self))

    def plan(
        self, models: Sequence[str], *, reps: int, warmup: bool, delay_s: float, requests: bool = False
    ) -> BenchPlan:
        """The plan they make. `requests`: whole requests are measured even where it has no tests.

        Raises:
            UsageError: no model, no test or too many, or a text that is no list.
        """
        from llmrun.bench.lists import parse_layers, parse_numbers, parse_pair, parse_words
        from llmrun.bench.plan import BenchPlan

        if not models:
            raise UsageError("no model is named", "llmrun bench MODEL..., or --compare A [B]")

        def numbers(
            given: Lists, flag: str, default: tuple[int, ...], least: int, most: int
        ) -> tuple[int, ...]:
            return parse_numbers(given, flag, least=least, most=most) if given else default

        def texts(given: Lists, flag: str, most: int) -> tuple[str, ...]:
            return tuple(map(str, numbers(given, flag, (), 1, most)))

        plan = BenchPlan(
            models=tuple(models),
            n_prompt=numbers(self.n_prompt, "-p", (512,), 0, MAX_TOKENS),
            n_gen=numbers(self.n_gen, "-n", (128,), 0, MAX_TOKENS),
            pairs=tuple(parse_pair(text, "-pg", most=MAX_TOKENS) for text in self.pairs or ()),
            n_depth=numbers(self.depth, "-d", (0,), 0, MAX_TOKENS),
            n_parallel=numbers(self.parallel, "-np", (1,), 1, MAX_SEQUENCES),
            varying={
                "n_gpu_layers": parse_layers(self.n_gpu_layers or (), "-ngl", most=MAX_LAYERS),
                "n_batch": texts(self.n_batch, "-b", MAX_BATCH),
                "n_ubatch": texts(self.n_ubatch, "-ub", MAX_BATCH),
                "type_k": parse_words(self.type_k or (), "-ctk"),
                "type_v": parse_words(self.type_v or (), "-ctv"),
                "flash_attn": tuple(
                    _FLASH.get(word, word) for word in parse_words(self.flash_attn or (), "-fa")
                ),
                "n_threads": texts(self.n_threads, "-t", MAX_THREADS),
            },
            reps=reps,
            warmup=warmup,
            delay_s=delay_s,
        )
        n_tests = plan.n_tests + (plan.n_subjects if requests else 0)
        if n_tests > MAX_TESTS:
            raise UsageError(
                f"the lists make {n_tests:,} tests, more than {MAX_TESTS:,}", "name fewer values"
            )
        if not n_tests:
            raise UsageError(
                "nothing to measure: all counts are 0", "give -p, -n or -pg a count, or a --prompt"
            )
        return plan
