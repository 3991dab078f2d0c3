"""How long a person waits: for `llmrun --help`, `list` and `vram`, and for the first token of `llmrun run`
against llama-completion.

    python -m benchmarks.startup [--runs 11] [-t THREADS]

Whole processes, timed from before they are started: until the first byte of the answer arrives on a pipe,
and until they have ended. One token is asked for (`-n 1`), greedy, with the chat template, from the same
model, prompt and threads. The programs take turns; a first turn that fills the page cache is not counted.
llama-completion is run twice: as it comes, which is what the target is set against, and without its
warm-up run and memory fitting, which is as fast as it can start.

Targets: `--help` below 0.2 s; `vram` below 0.3 s; the first token at most 0.25 s after llama-completion's.
Exit status: 0 targets met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.build_tools import find_tool, tool_environment
from benchmarks.machine import CannotRun, say
from benchmarks.stats import difference

HELP, LIST, VRAM, OURS = "llmrun --help", "llmrun list", "llmrun vram", "llmrun run"
PEER, LEAN_PEER = "llama-completion", "llama-completion, lean"
PEER_TOOL = "llama-completion"
HELP_TARGET_S = 0.2
VRAM_TARGET_S = 0.3
LATER_TARGET_S = 0.25
EMBEDDED = "smollm2-135m"
PROMPT = "Why is the sky blue?"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from before the process was started to its first byte of output, and to its end."""

    first_byte_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """A command line and the environment it needs."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def time_process(program: Program) -> Timing:
    """Run it once, stdin empty. Raises CannotRun if it fails or prints nothing."""
    began = time.perf_counter()
    with subprocess.Popen(
        program.command,
        env=dict(program.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.fileno()
        got = os.read(output, 1)
        first_byte = time.perf_counter() - began
        while os.read(output, 65536):
            pass
        status = process.wait()
    end = time.perf_counter() - began
    if status != 0 or not got:
        raise CannotRun(f"`{' '.join(program.command)}` ended with status {status} and {len(got)} bytes")
    return Timing(first_byte, end)


def programs(model: Path | None, threads: int, environment: Mapping[str, str]) -> dict[str, Program]:
    """The command lines that are compared. Raises CannotRun when a tool or the model is missing."""
    llmrun = machine.llmrun_command()
    path = model or machine.embedded_model()
    same = ("-n", "1", "-t", str(threads), "--temp", "0")
    ours = (*llmrun, "run", str(model or EMBEDDED), PROMPT, *same)
    quiet = ("-st", "--no-display-prompt", "--simple-io", "-lv", "0")
    peer = (str(find_tool(PEER_TOOL)), "-m", str(path), "-p", PROMPT, *same, *quiet)
    tools = tool_environment(environment)
    return {
        HELP: Program((*llmrun, "--help"), environment),
        LIST: Program((*llmrun, "list", "--json"), environment),
        VRAM: Program((*llmrun, "vram", str(model or EMBEDDED)), environment),
        OURS: Program(ours, environment),
        PEER: Program(peer, tools),
        LEAN_PEER: Program((*peer, "--no-warmup", "-fit", "off"), tools),
    }


def measure(candidates: Mapping[str, Program], runs: int) -> dict[str, list[Timing]]:
    """Timings of every program, taken in turns after one uncounted turn."""
    for program in candidates.values():
        time_process(program)
    timings: dict[str, list[Timing]] = {name: [] for name in candidates}
    for index in range(runs):
        for name, program in candidates.items():
            timings[name].append(time_process(program))
        line = ", ".join(f"{name} {found[-1].first_byte_s:.3f}" for name, found in timings.items())
        say(f"turn {index + 1} of {runs}: {line} s")
    return timings


def series(timings: Sequence[Timing], field: str) -> list[float]:
    """One field of every timing."""
    return [getattr(timing, field) for timing in timings]


def show(timings: Mapping[str, Sequence[Timing]]) -> bool:
    """Print samples and medians; True if all targets are met."""
    for field, title in (("first_byte_s", "first byte"), ("end_s", "process end")):
        for name, found in timings.items():
            samples = series(found, field)
            raw = " ".join(f"{sample:.3f}" for sample in samples)
            print(f"{title:11}  {name:22}  median {statistics.median(samples):.3f} s   {raw}")
    met = [ends_below(timings, HELP, HELP_TARGET_S), ends_below(timings, VRAM, VRAM_TARGET_S)]
    for field in ("first_byte_s", "end_s"):
        for peer in (PEER, LEAN_PEER):
            later = difference(series(timings[OURS], field), series(timings[peer], field))
            what = "first byte" if field == "first_byte_s" else "end"
            print(
                f"{OURS} after {peer}, {what}: {later.of_medians:+.3f} s of medians; pairs"
                f" {later.paired_median:+.3f} ({later.paired_min:+.3f} to {later.paired_max:+.3f})"
            )
    firsts = {name: statistics.median(series(timings[name], "first_byte_s")) for name in (OURS, PEER)}
    later_s = firsts[OURS] - firsts[PEER]
    later_met = later_s <= LATER_TARGET_S
    verdict = "met" if later_met else "MISSED"
    print(f"first token {later_s:+.3f} s; target at most {LATER_TARGET_S:+} s: {verdict}")
    return all(met) and later_met


def ends_below(timings: Mapping[str, Sequence[Timing]], name: str, target_s: float) -> bool:
    """Print whether half of the runs have ended in time, and the fastest, which other load disturbs least."""
    ends = series(timings[name], "end_s")
    median_s = statistics.median(ends)
    verdict = "met" if median_s < target_s else "MISSED"
    print(f"{name}: {median_s:.3f} s, at best {min(ends):.3f}; target below {target_s} s: {verdict}")
    return median_s < target_s


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="Start-up time of llmrun and llama-completion.")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the embedded model by its name")
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("-t", "--threads", type=int, help="default: what llmrun would use")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    try:
        threads = arguments.threads or machine.physical_threads()
        with machine.private_environment() as environment:
            candidates = programs(arguments.model, threads, environment)
            record = machine.provenance(threads)
            watch = machine.Watch()
            timings = measure(candidates, arguments.runs)
            disturbance = watch.total()
    except CannotRun as error:
        say(str(error))
        return 2
    print(f"start-up, seconds, {arguments.runs} runs each, interleaved")
    machine.show_provenance(record)
    met = show(timings)
    print(machine.busy_note(disturbance))
    document = {
        "benchmark": "startup",
        "provenance": record,
        "commands": {name: [Path(p.command[0]).name, *p.command[1:]] for name, p in candidates.items()},
        "seconds": {name: [asdict(timing) for timing in found] for name, found in timings.items()},
        "others_cores": disturbance,
        "targets": {"help_s": HELP_TARGET_S, "vram_s": VRAM_TARGET_S, "first_token_later_s": LATER_TARGET_S},
    }
    print(f"samples: {machine.write_result('startup', document, arguments.output)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
