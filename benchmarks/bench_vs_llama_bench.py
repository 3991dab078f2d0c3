"""`llmrun bench` beside llama-bench: prompts, outputs and depth, in turns.

    python -m benchmarks.bench_vs_llama_bench [--rounds N] [-p N] [-n N] [-d N] [-fa on|off] [-t N] [-o FILE]

In each round both programs run the same tests once, with the same shared libraries, threads, batch sizes, K/V
types and flash attention. llama-bench is told not to repack weights where llmrun does not. Every sample is
printed and kept; a test is met where the ratio of the medians is within 3 % of 1.

Every test is a process of its own, and the programs change who goes first. The rate of a prompt at depth
holds still to 1 % as long as a context lives, but differs by up to 15 % from one to the next, in either
program, with where in memory its buffers come to lie. Repetitions in one process would draw one placement and
repeat it; and of two tests in one process the second gets the memory of the first, which the programs hand on
differently. So both draw anew for every sample, often enough for the medians to settle.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.build_tools import find_tool, tool_environment
from benchmarks.machine import CannotRun, Outcome, say
from benchmarks.stats import Comparison, ratio

OURS, THEIRS = "llmrun", "llama-bench"
TOLERANCE = 0.03

Rates = dict[str, float]
"""Tokens a second by the name of the test."""
Side = Callable[[], Rates]


@dataclass(frozen=True, slots=True)
class Setup:
    """What both sides are asked for. `repack`: whether the engine makes faster copies of weights here."""

    model: Path
    threads: int
    flash_attn: str
    repack: bool = True


@dataclass(frozen=True, slots=True)
class Test:
    """Tokens of prompt and output after `depth` held ones."""

    n_prompt: int
    n_gen: int
    depth: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """Samples of each side for each test, and what other programs used in each round (cores)."""

    ours: tuple[Rates, ...]
    theirs: tuple[Rates, ...]
    others: tuple[float | None, ...]

    def compare(self) -> dict[str, Comparison]:
        """Each test over the undisturbed rounds."""
        chosen = machine.undisturbed(self.others)
        return {
            name: ratio([self.ours[i][name] for i in chosen], [self.theirs[i][name] for i in chosen])
            for name in self.ours[0]
        }


def take_turns(pairs: Sequence[tuple[Side, Side]], rounds: int, other: str) -> Rounds:
    """Run each pair of ours and theirs in every round. Raises CannotRun when one measured different tests."""
    samples: tuple[list[Rates], list[Rates]] = ([], [])
    others: list[float | None] = []
    watch = machine.Watch()
    for index in range(rounds):
        kept: tuple[Rates, Rates] = ({}, {})
        for pair in pairs:
            for number in (0, 1) if index % 2 == 0 else (1, 0):
                kept[number].update(pair[number]())
        if kept[0].keys() != kept[1].keys():
            raise CannotRun(f"the sides ran {[*kept[0]]} and {[*kept[1]]}: not comparable")
        for rates, series in zip(kept, samples, strict=True):
            series.append(rates)
        others.append(watch.lap())
        line = "  ".join(f"{name} {rate:.1f}/{kept[1][name]:.1f}" for name, rate in kept[0].items())
        say(f"round {index + 1} of {rounds}, {OURS}/{other}: {line} tok/s")
    return Rounds(tuple(samples[0]), tuple(samples[1]), tuple(others))


def llmrun_records(arguments: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The records of `llmrun bench -o json`."""
    command = [*machine.llmrun_command(), "bench", *arguments, "-q", "-o", "json"]
    found: list[dict[str, Any]] = json.loads(machine.call(command, environment))
    return found


def rates_of(records: Sequence[Mapping[str, Any]]) -> Rates:
    """The median of each test of records as llama-bench writes them.

    Raises:
        CannotRun: two records are of the same test.
    """
    found: Rates = {}
    for record in records:
        parts = [f"pp{record['n_prompt']}"] * bool(record["n_prompt"]) + [f"tg{record['n_gen']}"] * bool(
            record["n_gen"]
        )
        name = "+".join(parts) + (f" @ d{record['n_depth']}" if record["n_depth"] else "")
        if name in found:
            raise CannotRun(f"the test {name} was run twice")
        found[name] = statistics.median(record["samples_ts"])
    return found


def tests_of(n_prompt: int, n_gen: int, depth: int) -> list[Test]:
    """A prompt and an output, from nothing and behind `depth` tokens; what has no tokens is no test."""
    counts = [(n_prompt, 0), (0, n_gen)]
    return [Test(p, n, d) for d in dict.fromkeys((0, depth)) for p, n in counts if p or n]


def shared_flags(setup: Setup, test: Test) -> list[str]:
    """Flags that both programs take."""
    return [
        *("-p", str(test.n_prompt), "-n", str(test.n_gen), "-d", str(test.depth), "-r", "1"),
        *("-t", str(setup.threads), "-fa", "1" if setup.flash_attn == "on" else "0"),
    ]


def llmrun_rates(setup: Setup, test: Test, environment: Mapping[str, str]) -> Rates:
    """One repetition of a test by a process of llmrun."""
    return rates_of(llmrun_records([str(setup.model), *shared_flags(setup, test)], environment))


def llama_bench_rates(setup: Setup, test: Test, environment: Mapping[str, str]) -> Rates:
    """One repetition of a test by a process of llama-bench."""
    command = [
        *(str(find_tool(THEIRS)), "-m", str(setup.model), "-o", "json", *shared_flags(setup, test)),
        *("--repack", str(int(setup.repack))),
    ]
    return rates_of(json.loads(machine.call(command, tool_environment(environment))))


def show(rounds: Rounds, other: str, met: Callable[[Comparison], bool]) -> bool:
    """Print medians and ratios of each test; True if all are met."""
    all_met = True
    print(f"{'test':>16}  {OURS:>10}  {other:>19}  of medians   pairs (min to max)")
    chosen = machine.undisturbed(rounds.others)
    for name, found in rounds.compare().items():
        all_met = all_met and met(found)
        medians = [
            statistics.median([side[i][name] for i in chosen]) for side in (rounds.ours, rounds.theirs)
        ]
        print(
            f"{name:>16}  {medians[0]:10.1f}  {medians[1]:19.1f}  {found.of_medians:10.3f}  "
            f"{found.paired_median:6.3f} ({found.paired_min:.3f} to {found.paired_max:.3f})  "
            f"{'met' if met(found) else 'MISSED'}"
        )
    print(f"over {len(chosen)} of {len(rounds.others)} rounds")
    return all_met


def within_tolerance(found: Comparison) -> bool:
    """Whether the rates are the same but for 3 %."""
    return abs(found.of_medians - 1) <= TOLERANCE


def outcome(title: str, setup: Any, rounds: Rounds, other: str, met: Callable[[Comparison], bool]) -> Outcome:
    """What to print and to write of two programs that took turns."""
    document = {
        "setup": {**asdict(setup), "model": setup.model.name},
        "tokens_per_second": {"llmrun": rounds.ours, "other": rounds.theirs},
        "others_cores": rounds.others,
        "llmrun_relative_to_other": {test: asdict(found) for test, found in rounds.compare().items()},
        "compared_rounds": machine.undisturbed(rounds.others),
    }
    return Outcome(title, lambda: show(rounds, other, met), document)


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """Every test by both programs, round by round."""
    find_tool(THEIRS)
    repack = repacks(arguments.model, environment)
    setup = Setup(arguments.model, arguments.threads, arguments.flash_attn, repack)
    pairs = [
        (
            functools.partial(llmrun_rates, setup, test, environment),
            functools.partial(llama_bench_rates, setup, test, environment),
        )
        for test in tests_of(arguments.p, arguments.n, arguments.d)
    ]
    rounds = take_turns(pairs, arguments.rounds, THEIRS)
    title = f"{setup.model.name}, flash attention {setup.flash_attn}, {setup.threads} threads"
    return outcome(title, setup, rounds, THEIRS, within_tolerance)


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("llmrun bench beside llama-bench.", rounds=9)
    parser.add_argument("-p", type=int, default=512, help="prompt tokens (default 512)")
    parser.add_argument("-n", type=int, default=128, help="output tokens (default 128)")
    parser.add_argument("-d", type=int, default=1024, help="depth of the second pair of tests (default 1024)")
    parser.add_argument("-fa", "--flash-attn", choices=("on", "off"), default="on")
    return machine.measurement("bench_vs_llama_bench", parser, measure)


def repacks(model: Path, environment: Mapping[str, str]) -> bool:
    """Whether llmrun lets the engine repack weights on this CPU; some builds crash with it."""
    flags = ["-p", "1", "-n", "0", "-r", "1", "--no-warmup", "-t", "1"]
    return bool(llmrun_records([str(model), *flags], environment)[0]["repack"])


if __name__ == "__main__":
    sys.exit(main())
