"""`llmrun bench --parallel` beside llama-batched-bench: several sequences in one batch, in turns.

    python -m benchmarks.parallel_vs_batched_bench [--rounds N] [-p N] [-n N] [--parallel 1,2,4,8] [-o FILE]

llama-batched-bench evaluates the prompts of B sequences, then a token of each a step; its output begins where
the prompt ends, so llmrun's outputs are measured at that depth. Each sequence has cells of its own on both
sides. The sum over all sequences must reach 0.97 of llama-batched-bench's, for prompts and for outputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench_vs_llama_bench import Rates, finish, llmrun_records, repacks, show, take_turns
from benchmarks.build_tools import find_tool, tool_environment
from benchmarks.machine import CannotRun, say
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
    parallel: tuple[int, ...]
    threads: int
    repack: bool

    @property
    def n_ctx(self) -> int:
        """Cells for the most sequences, in the engine's steps."""
        each = -(-(self.n_prompt + self.n_gen) // _CELLS) * _CELLS
        return each * max(self.parallel)


def llmrun_rates(setup: Setup, environment: Mapping[str, str]) -> Rates:
    """Prompts at depth 0 and outputs behind them, for each number of sequences."""
    flags = [
        *("-p", str(setup.n_prompt), "-n", str(setup.n_gen), "-d", f"0,{setup.n_prompt}", "-r", "1"),
        *("-np", ",".join(map(str, setup.parallel)), "-t", str(setup.threads), "-fa", "1"),
    ]
    return chosen(llmrun_records([str(setup.model), *flags], environment), setup.n_prompt)


def chosen(records: Sequence[Mapping[str, Any]], n_prompt: int) -> Rates:
    """The tests that llama-batched-bench has as well."""
    found: Rates = {}
    for record in records:
        if record["n_prompt"] and not record["n_depth"]:
            found[f"prompt x{record['n_parallel']}"] = record["median_ts"]
        elif record["n_gen"] and record["n_depth"] == n_prompt:
            found[f"output x{record['n_parallel']}"] = record["median_ts"]
    return found


def batched_bench_rates(setup: Setup, environment: Mapping[str, str]) -> Rates:
    """The same by llama-batched-bench."""
    command = [
        *(str(find_tool(THEIRS)), "-m", str(setup.model), "-c", str(setup.n_ctx), "-b", "2048", "-ub", "512"),
        *("-npp", str(setup.n_prompt), "-ntg", str(setup.n_gen), "-npl", ",".join(map(str, setup.parallel))),
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


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="llmrun bench --parallel beside llama-batched-bench.")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the embedded model")
    parser.add_argument("-p", type=int, default=128, help="prompt tokens of each sequence (default 128)")
    parser.add_argument("-n", type=int, default=64, help="output tokens of each sequence (default 64)")
    parser.add_argument("--parallel", default="1,2,4,8", help="sequences at once (default 1,2,4,8)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-t", "--threads", type=int, help="default: what llmrun would use")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    try:
        with machine.private_environment() as environment:
            find_tool(THEIRS)
            model = arguments.model or machine.embedded_model()
            setup = Setup(
                model, arguments.p, arguments.n, tuple(map(int, arguments.parallel.split(","))),
                arguments.threads or machine.physical_threads(), repacks(model, environment),
            )  # fmt: skip
            record = machine.provenance(setup.threads)
            rounds = take_turns(
                lambda: llmrun_rates(setup, environment), lambda: batched_bench_rates(setup, environment),
                arguments.rounds, THEIRS,
            )  # fmt: skip
    except CannotRun as error:
        say(str(error))
        return 2
    print(f"{setup.model.name}, {setup.n_prompt} + {setup.n_gen} tokens a sequence, {setup.threads} threads")
    machine.show_provenance(record)
    met = show(rounds, THEIRS, fast_enough)
    finish("parallel_vs_batched_bench", setup, record, rounds, arguments.output)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
