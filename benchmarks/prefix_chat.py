"""How long each turn of a growing chat waits for its first token: llmrun, llama-server, the `Llama` class.

    python -m benchmarks.prefix_chat [--turns 10] [--rounds 3] [-t THREADS]

The same messages after the same system text, greedy, answers of 32 tokens at most, one open model on each
side; every round starts anew. From turn 2 on the history is in the K/V cache and only the new message has to
be read, where a side finds that out.

Target: llmrun's median TTFT of each turn from the second on at most that of the best of the others.
Exit status: 0 target met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from benchmarks.conversations import Answer, Script, ask_child, ask_server
from benchmarks.machine import CannotRun, say

OURS, SERVER, CLASS = "llmrun", "llama-server", "Llama class"
SYSTEM = "You help a small town plan its summer. Answer in one or two sentences. " * 20
QUESTIONS = (
    "What could we do on the first weekend?",
    "Which of these needs the least money?",
    "Who should be asked to help with it?",
    "And if it rains?",
    "How many chairs do we need for eighty people?",
    "What do children like about it?",
    "Write one line for the poster.",
    "Make it shorter.",
    "When should the poster be up?",
    "What have we forgotten?",
)


def measure(
    turns: int, rounds: int, model: Path, threads: int, environment: Mapping[str, str]
) -> dict[str, list[list[Answer]]]:
    """Answers of every side, round by round, the sides in turn."""
    messages = tuple(QUESTIONS[turn % len(QUESTIONS)] for turn in range(turns))
    script = Script(SYSTEM, messages)
    found: dict[str, list[list[Answer]]] = {OURS: [], SERVER: [], CLASS: []}
    for number in range(rounds):
        found[OURS].append(ask_child("benchmarks.llmrun_side", script, model, threads, environment))
        found[SERVER].append(ask_server(script, model, threads, environment))
        found[CLASS].append(ask_child("benchmarks.llama_class_side", script, model, threads, environment))
        last = ", ".join(f"{side} {answers[-1][-1].ttft_s:.3f}" for side, answers in found.items())
        say(f"round {number + 1} of {rounds}: last turn {last} s")
    return found


def ttft_of_turn(answers: Sequence[Sequence[Answer]], turn: int) -> float:
    """Median over the rounds."""
    return statistics.median(one[turn].ttft_s for one in answers)


def show(found: Mapping[str, Sequence[Sequence[Answer]]]) -> bool:
    """Print the table; True if the target is met."""
    sides = list(found)
    print(f"{'turn':>4}  {'tokens':>6}  {'cached':>6}  " + "  ".join(f"{side:>14}" for side in sides))
    met = True
    for turn in range(len(found[OURS][0])):
        ours = found[OURS][0][turn]
        medians = {side: ttft_of_turn(found[side], turn) for side in sides}
        best = min(value for side, value in medians.items() if side != OURS)
        mark = "" if turn == 0 or medians[OURS] <= best else "  MISSED"
        met = met and not mark
        cells = "  ".join(f"{1000 * medians[side]:>11.0f} ms" for side in sides)
        print(f"{turn + 1:>4}  {ours.prompt_n:>6}  {ours.cached_n:>6}  {cells}{mark}")
    return met


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="TTFT of each turn of a growing chat.")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the embedded model")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, help="default: what llmrun would use")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    try:
        threads = arguments.threads or machine.physical_threads()
        model = arguments.model or machine.embedded_model()
        with machine.private_environment() as environment:
            record = machine.provenance(threads)
            watch = machine.Watch()
            found = measure(arguments.turns, arguments.rounds, model, threads, environment)
            disturbance = watch.total()
    except CannotRun as error:
        say(str(error))
        return 2
    print(f"TTFT of each turn, medians of {arguments.rounds} rounds, interleaved")
    machine.show_provenance(record)
    met = show(found)
    print(machine.busy_note(disturbance))
    document = {
        "benchmark": "prefix_chat",
        "provenance": record,
        "answers": {side: [[asdict(a) for a in one] for one in rounds] for side, rounds in found.items()},
        "others_cores": disturbance,
    }
    print(f"samples: {machine.write_result('prefix_chat', document, arguments.output)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
