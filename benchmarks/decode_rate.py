"""llmrun's generation rate against llama-bench and against the `Llama` class of llama-cpp-python.

    python -m benchmarks.decode_rate [--rounds 5] [-n 1000] [--depth 4] [-fa on|off] [-t THREADS]

Each round runs all three, one after the other, every time in a fresh process: `llmrun run --json` as a user
would call it, llama-bench's `tg` test, and a completion streamed by the class. All evaluate the same
positions: the first token comes out of the prompt of `depth` tokens, so n tokens take n-1 steps, at depths
`depth` to `depth + n - 2`, and llama-bench is asked for exactly these (`-d depth -n n-1`). Same shared
libraries, threads and flash attention; greedy; the end of the turn is ignored. llama-bench neither samples
nor turns tokens into text, so its rate is a ceiling. Targets: 0.98 of it, 1.05 of the class.

Exit status: 0 targets met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
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

OURS, BENCH, CLASS = "llmrun", "llama-bench", "Llama class"
TARGETS = {BENCH: 0.98, CLASS: 1.05}
CTX_STEP = 256  # the engine rounds a context up to a multiple of this


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all sides. `n` tokens are sampled after a prompt of `depth` tokens."""

    model: Path
    prompt: str
    depth: int
    n: int
    threads: int
    flash_attn: str

    @property
    def n_ctx(self) -> int:
        """Context size that holds prompt and answer."""
        return -(-(self.depth + self.n) // CTX_STEP) * CTX_STEP


Rates = dict[str, list[float]]
Side = Callable[[Setup, Mapping[str, str]], float]


def llmrun_document(setup: Setup, environment: Mapping[str, str]) -> dict[str, Any]:
    """The completion document of one `llmrun run`. Raises CannotRun if it did not do what was asked."""
    command = [
        *machine.llmrun_command(),
        *("run", str(setup.model), setup.prompt, "--raw", "--json", "--ignore-eos", "--temp", "0"),
        *("-n", str(setup.n), "-c", str(setup.n_ctx), "-t", str(setup.threads), "-fa", setup.flash_attn),
    ]
    document: dict[str, Any] = json.loads(machine.call(command, environment))
    if document["timings"]["predicted_n"] != setup.n:
        raise CannotRun(f"llmrun made {document['timings']['predicted_n']} tokens, {setup.n} were asked for")
    return document


def llmrun_rate(setup: Setup, environment: Mapping[str, str]) -> float:
    """Tokens a second as llmrun reports them."""
    timings = llmrun_document(setup, environment)["timings"]
    _check_depth(OURS, setup.depth, timings["prompt_n"])
    return float(timings["predicted_per_second"])


def llama_bench_rate(setup: Setup, environment: Mapping[str, str]) -> float:
    """Tokens a second of llama-bench's `tg` test over the same positions."""
    command = [
        *(str(find_tool(BENCH)), "-m", str(setup.model), "-o", "json", "-r", "1", "-p", "0"),
        *("-n", str(setup.n - 1), "-d", str(setup.depth), "-t", str(setup.threads)),
        *("-fa", "1" if setup.flash_attn == "on" else "0"),
    ]
    return parse_llama_bench(machine.call(command, tool_environment(environment)), setup.n - 1, setup.depth)


def parse_llama_bench(text: str, n_gen: int, n_depth: int) -> float:
    """The rate of the one `tg` record in llama-bench's JSON. Raises ValueError if another test was run."""
    records = json.loads(text)
    wanted = {"n_prompt": 0, "n_gen": n_gen, "n_depth": n_depth}
    found = [record for record in records if {key: record[key] for key in wanted} == wanted]
    if len(found) != 1:
        raise ValueError(f"llama-bench's output has {len(found)} records of {wanted}, one was expected")
    return float(statistics.median(found[0]["samples_ts"]))


def llama_class_rate(setup: Setup, environment: Mapping[str, str]) -> float:
    """Tokens a second of the `Llama` class, streaming."""
    command = [
        *(sys.executable, "-m", "benchmarks.llama_class"),
        *("--model", str(setup.model), "--prompt", setup.prompt),
        *("-n", str(setup.n), "-c", str(setup.n_ctx), "-t", str(setup.threads), "-fa", setup.flash_attn),
    ]
    answer = json.loads(machine.call(command, {**environment, "PYTHONPATH": str(machine.ROOT)}))
    _check_depth(CLASS, setup.depth, answer["prompt_n"])
    if answer["predicted_n"] != setup.n:
        raise CannotRun(f"the Llama class made {answer['predicted_n']} tokens, {setup.n} were asked for")
    return float(answer["predicted_per_second"])


def _check_depth(side: str, expected: int, found: int) -> None:
    if found != expected:
        raise CannotRun(f"{side} started at depth {found}, the others at {expected}: not comparable")


SIDES: dict[str, Side] = {OURS: llmrun_rate, BENCH: llama_bench_rate, CLASS: llama_class_rate}


def take_turns(setup: Setup, rounds: int, environment: Mapping[str, str]) -> tuple[Rates, list[float | None]]:
    """Rates of every side, in rounds, and what other programs used in each round (cores)."""
    rates: Rates = {name: [] for name in SIDES}
    others: list[float | None] = []
    watch = machine.Watch()
    for index in range(rounds):
        for name, run in SIDES.items():
            rates[name].append(run(setup, environment))
        others.append(watch.lap())
        line = "  ".join(f"{name} {series[-1]:.1f}" for name, series in rates.items())
        say(f"round {index + 1} of {rounds}: {line} tok/s")
    return rates, others


def compare(rates: Mapping[str, Sequence[float]], rounds: Sequence[int]) -> dict[str, Comparison]:
    """llmrun against each of the others, over the given rounds."""
    chosen = {name: [series[index] for index in rounds] for name, series in rates.items()}
    return {name: ratio(chosen[OURS], chosen[name]) for name in TARGETS}


def show(rates: Mapping[str, Sequence[float]], others: Sequence[float | None]) -> bool:
    """Print samples, then medians and ratios of the undisturbed rounds; True if every target is met."""
    print("round  " + "  ".join(f"{name:>12}" for name in rates) + "  others (cores)")
    for index, used in enumerate(others):
        row = "  ".join(f"{series[index]:12.1f}" for series in rates.values())
        print(f"{index + 1:5}  {row}  {'unknown' if used is None else f'{used:.2f}'}")
    rounds = machine.undisturbed(others)
    chosen = [statistics.median([series[index] for index in rounds]) for series in rates.values()]
    medians = "  ".join(f"{median:12.1f}" for median in chosen)
    print(f"median {medians}  tok/s over {len(rounds)} of {len(others)} rounds")
    met = True
    for name, found in compare(rates, rounds).items():
        met = met and found.of_medians >= TARGETS[name]
        verdict = "met" if found.of_medians >= TARGETS[name] else "MISSED"
        print(
            f"{OURS} / {name}: {found.of_medians:.3f} of medians; pairs {found.paired_median:.3f}"
            f" ({found.paired_min:.3f} to {found.paired_max:.3f}); target {TARGETS[name]}: {verdict}"
        )
    return met


def prepare(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Setup:
    """The setup, its depth taken from what llmrun says of the prompt. Raises CannotRun."""
    find_tool(BENCH)
    prompt = " ".join(["word"] * arguments.depth)
    shared = arguments.threads, arguments.flash_attn
    guess = Setup(arguments.model, prompt, 2 * arguments.depth, 1, *shared)
    depth = llmrun_document(guess, environment)["timings"]["prompt_n"]
    return Setup(arguments.model, prompt, depth, arguments.n, *shared)


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """Every side, round by round."""
    setup = prepare(arguments, environment)
    rates, others = take_turns(setup, arguments.rounds, environment)
    compared = machine.undisturbed(others)
    document = {
        "setup": {**asdict(setup), "model": setup.model.name, "prompt": len(setup.prompt)},
        "tokens_per_second": rates,
        "others_cores": others,
        "llmrun_relative_to": {name: asdict(found) for name, found in compare(rates, compared).items()},
        "compared_rounds": compared,
        "targets": TARGETS,
    }
    how = f"flash attention {setup.flash_attn}, {setup.model.name}"
    title = f"decode rate, greedy, {setup.n} tokens from depth {setup.depth}, {how}"
    return Outcome(title, lambda: show(rates, others), document)


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("Generation rate of llmrun beside two others.", rounds=5)
    parser.add_argument("-n", type=int, default=1000, help="tokens to generate (default 1000)")
    parser.add_argument("--depth", type=int, default=4, help="tokens of the prompt, about (default 4)")
    parser.add_argument("-fa", "--flash-attn", choices=("on", "off"), default="on")
    return machine.measurement("decode_rate", parser, measure)


if __name__ == "__main__":
    sys.exit(main())
