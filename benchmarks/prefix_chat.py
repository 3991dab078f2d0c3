"""How long each turn of a growing chat waits for its first token: llmrun, llama-server, the `Llama` class.

    python -m benchmarks.prefix_chat [--turns 10] [--rounds 9] [-t THREADS]

The same messages after the same system text, greedy, one open model on each side; every round starts anew,
with new processes and nothing on disk. From turn 2 on the history is in the K/V cache and only the new
message has to be read, where a side finds that out. Answers are each side's own, and are cut off after a few
tokens: the last token of an answer that was cut off is not in the cache yet, so that a side whose answers
were complete would have a token less to evaluate. `new` is how many a side had, in the first round.

TTFT runs from handing the message over to the first text in the caller's hands, by the caller's own clock.
The rates of one process hold still but differ from those of the next, by where its buffers lie in memory:
sides are therefore compared round by round as well, over more rounds than elsewhere.

Target: llmrun's median TTFT of each turn from the second on at most that of the best of the others.
Exit status: 0 target met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from benchmarks import machine
from benchmarks.conversations import Answer, Script, ask_child, ask_server
from benchmarks.machine import Outcome, say
from benchmarks.stats import difference

OURS, SERVER, CLASS = "llmrun", "llama-server", "Llama class"
SYSTEM = "You help a small town plan its summer. Answer in one or two sentences. " * 20
N_PREDICT = 12
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

Rounds = Mapping[str, Sequence[Sequence[Answer]]]
"""Answers of every side, round by round, turn by turn."""


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """All rounds; who begins moves on from one to the next."""
    messages = tuple(QUESTIONS[turn % len(QUESTIONS)] for turn in range(arguments.turns))
    asked = Script(SYSTEM, messages, N_PREDICT), arguments.model, arguments.threads
    ask: dict[str, Callable[[Mapping[str, str]], list[Answer]]] = {
        OURS: lambda env: ask_child("benchmarks.llmrun_side", *asked, env),
        SERVER: lambda env: ask_server(*asked, env),
        CLASS: lambda env: ask_child("benchmarks.llama_class_side", *asked, env),
    }
    found: dict[str, list[list[Answer]]] = {side: [] for side in ask}
    for number in range(arguments.rounds):
        first = number % len(ask)
        with machine.private_environment() as fresh:
            for side in [*ask, *ask][first : first + len(ask)]:
                found[side].append(ask[side](fresh))
        last = ", ".join(f"{side} {answers[-1][-1].ttft_s:.3f}" for side, answers in found.items())
        say(f"round {number + 1} of {arguments.rounds}: last turn {last} s")
    written = {side: [[asdict(a) for a in one] for one in rounds] for side, rounds in found.items()}
    title = f"TTFT of each turn, medians of {arguments.rounds} rounds, interleaved"
    return Outcome(title, lambda: show(found), {"answers": written})


def series(rounds: Sequence[Sequence[Answer]], turn: int) -> list[float]:
    """TTFT of one turn in every round."""
    return [answers[turn].ttft_s for answers in rounds]


def show(found: Rounds) -> bool:
    """Print the table; True if the target is met."""
    turns = range(len(found[OURS][0]))
    print(f"{'turn':>4}  {'tokens':>6}" + "".join(f"{side:>14}{'new':>5}" for side in found) + "  pairs")
    missed = [turn for turn in turns if not _show_turn(found, turn)]
    for side in found:
        others = {name: [_mean(answers) for answers in found[name]] for name in (OURS, side)}
        if side != OURS:
            gap = difference(others[OURS], others[side])
            print(
                f"{OURS} less {side}, mean of turns from the second on: {1000 * gap.of_medians:+.1f} ms "
                f"(pairs {1000 * gap.paired_median:+.1f}, {1000 * gap.paired_min:+.1f} to "
                f"{1000 * gap.paired_max:+.1f})"
            )
    after_s = statistics.median(answer.after_s for answers in found[OURS] for answer in answers)
    print(f"{OURS} after an answer, until the next message can come: {1000 * after_s:.0f} ms")
    return not missed


def _show_turn(found: Rounds, turn: int) -> bool:
    """One row; `pairs`: by how much llmrun is behind the best of the others, within each round."""
    times = {side: series(rounds, turn) for side, rounds in found.items()}
    medians = {side: statistics.median(values) for side, values in times.items()}
    best = min((side for side in found if side != OURS), key=medians.__getitem__)
    pairs = difference(times[OURS], times[best]).paired_median
    met = turn == 0 or medians[OURS] <= medians[best]
    cells = "".join(f"{1000 * medians[s]:>11.1f} ms{_new(rounds[0][turn]):>5}" for s, rounds in found.items())
    tokens = found[OURS][0][turn].prompt_n
    print(f"{turn + 1:>4}  {tokens or '':>6}{cells}  {1000 * pairs:+.1f} ms{'' if met else '  MISSED'}")
    return met


def _new(answer: Answer) -> str:
    """Tokens that had to be evaluated."""
    if answer.prompt_n is None or answer.cached_n is None:
        return "?"
    return str(answer.prompt_n - answer.cached_n)


def _mean(answers: Sequence[Answer]) -> float:
    return statistics.mean(answer.ttft_s for answer in answers[1:] or answers)


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("TTFT of each turn of a growing chat.", rounds=9)
    parser.add_argument("--turns", type=int, default=10)
    return machine.measurement("prefix_chat", parser, measure)


if __name__ == "__main__":
    sys.exit(main())
