"""What a common document costs when every question is a process of its own.

    python -m benchmarks.prefix_runs [--rounds 3] [-t THREADS] [--tokens 4000]

A round asks a question on a document of about 4,000 tokens (cold), the same question again, and another one.
llmrun answers each in a new process (`llmrun run -sys @document`) and has only its snapshots on disk; beside
it stand, each with one process for the whole round, llama-server with its prompt cache, the `Llama` class,
and llmrun itself. TTFT is counted from the request to the first token, without loading the model; the whole
process is in the JSON as well.

Then prompts that have nothing in common are run with and without `--no-prefix-cache`: what the cache costs
those it never helps.

Targets: the same question again at most 1/100 of the cold TTFT; another question at most 100 ms more than
inside one process of llmrun; runs that never hit at most 3 % longer, in sum.
Exit status: 0 targets met, 1 one missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.conversations import N_CTX, Answer, Script, ask_child, ask_server
from benchmarks.machine import Outcome, say
from benchmarks.stats import ratio

PROCESSES, SERVER, CLASS, INSIDE = "llmrun run", "llama-server", "Llama class", "llmrun, one process"
KINDS = ("cold", "again", "another question")
QUESTIONS = ("What is this text about?", "What is this text about?", "Name three things it mentions.")
N_PREDICT = 8
AGAIN_TARGET, LATER_TARGET_S, OVERHEAD_TARGET = 1 / 100, 0.1, 1.03
NEVER_HIT_TOKENS = 600
TOKENS_A_SENTENCE = 10.2
WORDS = "river boat mill valley water spring hay row read wait year week stay first cut carry people"


@dataclass(frozen=True, slots=True)
class Process:
    """One `llmrun run`: its answer, and seconds from before its start to its end."""

    answer: Answer
    whole_s: float


def document(n_tokens: int, seed: int) -> str:
    """Sentences of common words, about `n_tokens` tokens of SmolLM2; the seed makes it another text."""
    chooser, words = random.Random(seed), WORDS.split()
    count = round(n_tokens / TOKENS_A_SENTENCE)
    return " ".join(f"{' '.join(chooser.choices(words, k=9)).capitalize()}." for _ in range(count))


def run_process(
    system: str, question: str, model: Path, threads: int, environment: Mapping[str, str], *flags: str
) -> Process:
    """One answer of a new process."""
    file = Path(environment["LLMRUN_DATA_DIR"]).parent / "document.txt"
    file.write_text(system, encoding="utf-8")
    command = [*machine.llmrun_command(), "run", str(model), question, "-sys", f"@{file}", "--temp", "0"]
    command += ["-n", str(N_PREDICT), "-c", str(N_CTX), "-t", str(threads), "-tb", str(threads), "--json"]
    began_s = time.perf_counter()
    answered = json.loads(machine.call([*command, *flags], environment))
    whole_s = time.perf_counter() - began_s
    timings = answered["timings"]
    tokens = answered["usage"]["prompt_tokens"]
    return Process(Answer(timings["ttft_ms"] / 1000, tokens, timings["cache_n"]), whole_s)


def measure_round(
    seed: int, n_tokens: int, model: Path, threads: int, environment: Mapping[str, str]
) -> tuple[dict[str, list[Answer]], list[float]]:
    """Answers of every side to the three questions on a document of its own; whole times of llmrun's runs."""
    system = document(n_tokens, seed)
    runs = [run_process(system, question, model, threads, environment) for question in QUESTIONS]
    script = Script(system, QUESTIONS, N_PREDICT, independent=True)
    apart = {**environment, "LLMRUN_PREFIX_CACHE": "off"}  # the live sequence alone
    return {
        PROCESSES: [run.answer for run in runs],
        SERVER: ask_server(script, model, threads, environment),
        CLASS: ask_child("benchmarks.llama_class_side", script, model, threads, environment),
        INSIDE: ask_child("benchmarks.llmrun_side", script, model, threads, apart),
    }, [run.whole_s for run in runs]


def measure_overhead(
    rounds: int, model: Path, threads: int, environment: Mapping[str, str]
) -> tuple[list[float], list[float]]:
    """Whole times of runs that never hit, with the cache and without, in turns."""
    with_s, without_s = [], []
    for number in range(2 * rounds):
        system = document(NEVER_HIT_TOKENS, 1000 + number)
        asked = (system, "What is it about?", model, threads, environment)
        with_s.append(run_process(*asked).whole_s)
        without_s.append(run_process(*asked, "--no-prefix-cache").whole_s)
    return with_s, without_s


def median_ttft(rounds: Sequence[Mapping[str, Sequence[Answer]]], side: str, kind: int) -> float:
    """Over the rounds, in seconds."""
    return statistics.median(one[side][kind].ttft_s for one in rounds)


def show(
    rounds: Sequence[Mapping[str, Sequence[Answer]]], with_s: Sequence[float], without_s: Sequence[float]
) -> bool:
    """Print the table; True if all targets are met."""
    for side in rounds[0]:
        cells = ", ".join(
            f"{kind} {1000 * median_ttft(rounds, side, number):.0f} ms" for number, kind in enumerate(KINDS)
        )
        cached = [one.cached_n for one in rounds[0][side]]
        print(f"{side:20}  {cells}   cached {cached} of {rounds[0][side][0].prompt_n}")
    cold, again, other = (median_ttft(rounds, PROCESSES, kind) for kind in range(3))
    inside = median_ttft(rounds, INSIDE, 2)
    overhead = ratio(with_s, without_s)
    checks = (
        (f"the same again: 1/{cold / again:.0f} of cold", again <= cold * AGAIN_TARGET, "1/100"),
        (f"another question: {1000 * (other - inside):+.0f} ms", other - inside <= LATER_TARGET_S, "+100 ms"),
        (
            f"runs that never hit: {overhead.of_medians:.3f} times (pairs {overhead.paired_median:.3f})",
            overhead.of_medians <= OVERHEAD_TARGET,
            f"{OVERHEAD_TARGET}",
        ),
    )
    for text, met, target in checks:
        print(f"{text}; target at most {target}: {'met' if met else 'MISSED'}")
    return all(met for _, met, _ in checks)


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """The rounds, then the runs that never hit."""
    sides = arguments.model, arguments.threads, environment
    rounds, whole = [], []
    for number in range(arguments.rounds):
        answers, whole_s = measure_round(number, arguments.tokens, *sides)
        rounds.append(answers)
        whole.append(whole_s)
        shown = ", ".join(f"{answer.ttft_s:.3f}" for answer in answers[PROCESSES])
        say(f"round {number + 1} of {arguments.rounds}: {shown} s")
    with_s, without_s = measure_overhead(arguments.rounds, *sides)
    written = {
        "answers": [{side: [asdict(a) for a in found] for side, found in one.items()} for one in rounds],
        "whole_s": whole,
        "never_hit_s": {"with": with_s, "without": without_s},
    }
    title = f"TTFT with a document of about {arguments.tokens} tokens, medians of {arguments.rounds} rounds"
    return Outcome(title, lambda: show(rounds, with_s, without_s), written)


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("Repeated one-shot runs with a common document.", rounds=3)
    parser.add_argument("--tokens", type=int, default=4000, help="about so many in the document")
    return machine.measurement("prefix_runs", parser, measure)


if __name__ == "__main__":
    sys.exit(main())
