"""`llmrun bench --parallel` beside llama-batched-bench: several sequences in one batch, in turns.

    python -m benchmarks.parallel_vs_batched_bench [--rounds N] [-p N] [-n N] [--parallel 1,2,4,8] [-o FILE]

llama-batched-bench evaluates the prompts of B sequences, then a token of each a step; its output begins where
the prompt ends, so llmrun's outputs are measured at that depth. Each sequence has cells of its own on both
sides. The sum over all sequences must reach 0.97 of llama-batched-bench's, for prompts and for outputs.

Each number of sequences is a process of its own on their side, its prompts and its outputs are one on ours,
since a rate depends on where in memory a process comes to lie (see bench_vs_llama_bench).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench_vs_llama_bench import Rates, llmrun_records, outcome, repacks, take_turns
from benchmarks.build_tools import find_tool, tool_environment
from benchmarks.machine import Outcome
from benchmarks.stats import Comparison

THEIRS = "llama-batched-bench"
TARGET = 0.97
_CELLS = 256


@dataclass(frozen=True, slots=True)
class Setup:
    """What both sides are asked for."""

    model: Path
    n_prompt: int
    n_gen: int
    threads: int
    repack: bool

    def n_ctx(self, parallel: int) -> int:
        """Cells for so many sequences, in the engine's steps."""
        return parallel * -(-(self.n_prompt + self.n_gen) // _CELLS) * _CELLS


def llmrun_rates(setup: Setup, parallel: int, environment: Mapping[str, str]) -> Rates:
    """Prompts, and outputs behind them, of so many sequences."""
    shared = ["-r", "1", "-np", str(parallel), "-t", str(setup.threads), "-fa", "1"]
    tests = (
        ("-p", str(setup.n_prompt), "-n", "0"),
        ("-p", "0", "-n", str(setup.n_gen), "-d", str(setup.n_prompt)),
    )
    runs = (llmrun_records([str(setup.model), *test, *shared], environment) for test in tests)
    return rates_of([record for records in runs for record in records])


def rates_of(records: Sequence[Mapping[str, Any]]) -> Rates:
    """Rates by llama-batched-bench's phases and the number of sequences."""
    return {
        f"{'prompt' if record['n_prompt'] else 'output'} x{record['n_parallel']}": record["median_ts"]
        for record in records
    }


def batched_bench_rates(setup: Setup, parallel: int, environment: Mapping[str, str]) -> Rates:
    """The same by llama-batched-bench."""
    command = [
        *(str(find_tool(THEIRS)), "-m", str(setup.model), "-c", str(setup.n_ctx(parallel))),
        *("-b", "2048", "-ub", "512"),
        *("-npp", str(setup.n_prompt), "-ntg", str(setup.n_gen), "-npl", str(parallel)),
        *("-t", str(setup.threads), "-fa", "on", "--output-format", "jsonl"),
        *([] if setup.repack else ["--no-repack"]),
    ]
    return parse_batched_bench(machine.call(command, tool_environment(environment)))


def parse_batched_bench(text: str) -> Rates:
    """Rates from llama-batched-bench's JSON lines; other lines are its log."""
    found: Rates = {}
    for line in text.splitlines():
        start = line.find('{"n_kv_max"')
        if start >= 0:
            record = json.loads(line[start:])
            found[f"prompt x{record['pl']}"] = record["speed_pp"]
            found[f"output x{record['pl']}"] = record["speed_tg"]
    return found


def fast_enough(found: Comparison) -> bool:
    """Whether the target is met."""
    return found.of_medians >= TARGET


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """Every number of sequences by both programs, round by round."""
    find_tool(THEIRS)
    repack = repacks(arguments.model, environment)
    setup = Setup(arguments.model, arguments.p, arguments.n, arguments.threads, repack)
    pairs = [
        (
            functools.partial(llmrun_rates, setup, int(count), environment),
            functools.partial(batched_bench_rates, setup, int(count), environment),
        )
        for count in arguments.parallel.split(",")
    ]
    rounds = take_turns(pairs, arguments.rounds, THEIRS)
    counts = f"{setup.n_prompt} + {setup.n_gen} tokens a sequence"
    title = f"{setup.model.name}, {counts}, {setup.threads} threads"
    return outcome(title, setup, rounds, THEIRS, fast_enough)


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("llmrun bench --parallel beside llama-batched-bench.", rounds=9)
    parser.add_argument("-p", type=int, default=128, help="prompt tokens of each sequence (default 128)")
    parser.add_argument("-n", type=int, default=64, help="output tokens of each sequence (default 64)")
    parser.add_argument("--parallel", default="1,2,4,8", help="sequences at once (default 1,2,4,8)")
    return machine.measurement("parallel_vs_batched_bench", parser, measure)


if __name__ == "__main__":
    sys.exit(main())
