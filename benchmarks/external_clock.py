"""Whether a clock outside llmrun finds the times that it reports.

    python -m benchmarks.external_clock [MODEL] [--runs 5] [-n 128] [-p WORDS] [-o FILE]

Runs `llmrun run --stream json` and notes when each line arrives on the pipe. TTFT is then the time from the
`accepted` line to the first `token` line, the mean ITL the time from the first to the last `token` line over
the tokens after the first. Both are set beside `ttft_ms` and `itl_ms.mean` of the `finished` line; they agree
where they differ by at most 5 ms or 5 %, whichever is more. Half of the runs have a prompt of a few words,
half one of `-p` words.
Exit status: 0 all agree, 1 some do not, 2 something is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.machine import CannotRun, say

MOST_S = 0.005
MOST_SHARE = 0.05
SHORT = "Tell me a long story."
SENTENCE = "The lighthouse keeper wrote down every ship that passed. "

Arrival = tuple[float, Mapping[str, Any]]
"""When a line was there, in seconds of any clock, and what it holds."""


@dataclass(frozen=True, slots=True)
class Times:
    """Time to first token and mean time between tokens, in seconds."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One request, as timed at the pipe and as llmrun reports it."""

    prompt_tokens: int
    output_tokens: int
    outside: Times
    inside: Times

    @property
    def agrees(self) -> bool:
        """Whether both figures do."""
        return agree(self.outside.ttft_s, self.inside.ttft_s) and agree(self.outside.itl_s, self.inside.itl_s)


def agree(outside_s: float, inside_s: float) -> bool:
    """Within 5 ms or 5 % of the reported time, whichever is more."""
    return abs(outside_s - inside_s) <= max(MOST_S, MOST_SHARE * inside_s)


def times_at_the_pipe(arrivals: Iterable[Arrival]) -> Times:
    """From the arrivals of a whole stream. Raises ValueError where there are fewer than two tokens.

    Lines with `n` 0 carry text that was held back and are no tokens; a line with several tokens brings the
    last of them.
    """
    accepted_s, tokens = None, list[tuple[float, int]]()
    for at_s, line in arrivals:
        if line["event"] == "accepted":
            accepted_s = at_s
        elif line["event"] == "token" and line["n"]:
            tokens.append((at_s, line["n"]))
    count = sum(n for _, n in tokens)
    if accepted_s is None or len(tokens) < 2:
        raise ValueError(f"{count} tokens after {accepted_s}: nothing to time")
    first_s, first_n = tokens[0]
    return Times(first_s - accepted_s, (tokens[-1][0] - first_s) / (count - first_n))


def reported_times(finished: Mapping[str, Any]) -> Times:
    """What the `finished` line says."""
    timings = finished["timings"]
    return Times(timings["ttft_ms"] / 1000, timings["itl_ms"]["mean"] / 1000)


def time_request(model: str, prompt: str, n: int, environment: Mapping[str, str]) -> Run:
    """Run one request and time its lines. Raises CannotRun where it fails."""
    command = [
        *machine.llmrun_command(), "run", model, "-n", str(n), "--temp", "0", "--ignore-eos", "--no-stdin",
        "--stream", "json", "-p", prompt,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        lines = [(time.perf_counter(), line) for line in process.stdout]
    if process.returncode != 0:
        raise CannotRun(f"llmrun ended with status {process.returncode}")
    arrivals = [(at_s, json.loads(line)) for at_s, line in lines]
    finished = arrivals[-1][1]
    usage = finished["usage"]
    return Run(
        usage["prompt_tokens"],
        usage["completion_tokens"],
        times_at_the_pipe(arrivals),
        reported_times(finished),
    )


def show(runs: Sequence[Run]) -> None:
    """A line a run: both clocks, in milliseconds."""
    for run in runs:
        outside, inside = run.outside, run.inside
        print(
            f"  {run.prompt_tokens:>5} + {run.output_tokens:<4}"
            f" TTFT {outside.ttft_s * 1000:9.2f} outside, {inside.ttft_s * 1000:9.2f} reported"
            f"   ITL {outside.itl_s * 1000:7.3f} outside, {inside.itl_s * 1000:7.3f} reported"
            f"   {'agree' if run.agrees else 'DIFFER'}"
        )


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="Times of llmrun by an external clock.")
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=5, help="of each prompt")
    parser.add_argument("-n", type=int, default=128, help="output tokens")
    parser.add_argument("-p", type=int, default=500, metavar="WORDS", help="length of the longer prompt")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    long = SENTENCE * -(-arguments.p // len(SENTENCE.split()))
    watch = machine.Watch()
    try:
        with machine.private_environment() as environment:
            quiet = environment | {"LLMRUN_PREFIX_CACHE": "off"}
            runs = [
                time_request(arguments.model, prompt, arguments.n, quiet)
                for _ in range(arguments.runs)
                for prompt in (SHORT, long)
            ]
    except CannotRun as error:
        say(str(error))
        return 2
    record, others = machine.provenance(machine.physical_threads()), watch.total()
    print(f"llmrun by a clock at its pipe, {arguments.runs} runs of each prompt, milliseconds")
    machine.show_provenance(record)
    show(runs)
    print(machine.busy_note(others))
    document = {
        "benchmark": "external_clock",
        "provenance": record,
        "others_cores": others,
        "runs": [asdict(run) | {"agrees": run.agrees} for run in runs],
        "tolerance": {"s": MOST_S, "share": MOST_SHARE},
    }
    print(f"samples: {machine.write_result('external_clock', document, arguments.output)}")
    return 0 if all(run.agrees for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
