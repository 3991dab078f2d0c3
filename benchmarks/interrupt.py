"""How soon Ctrl-C takes effect while a model loads, reads a prompt, or answers.

    python -m benchmarks.interrupt [MODEL ...] [--runs 5]

Each run is `llmrun run --stream json` on a prompt of some thousand tokens; SIGINT is sent when the stream
says that the phase has begun (while loading: after a delay). Two times are taken: until it takes effect,
which is the last line of the stream (while loading: the end of the process), and until the process has
ended, which includes giving the memory back. Target for the first: at most 0.1 s.
Exit status: 0 target met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import CannotRun, say

TARGET_S = 0.1
LOADING_AFTER_S = 0.25
PROMPT = "The lighthouse keeper wrote down every ship that passed. " * 300
PHASES = ("load", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from SIGINT until it took effect, and until the process had ended."""

    effect_s: float
    end_s: float


def time_interrupt(model: str, phase: str, environment: Mapping[str, str]) -> Timing:
    """Interrupt one run. Raises CannotRun if it ended otherwise."""
    prompt = PROMPT if phase == "prefill" else "Tell me a long story."
    command = [
        *machine.llmrun_command(),
        "run",
        model,
        "--raw",
        "--no-stdin",
        "--stream",
        "json",
        "-p",
        prompt,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        if phase == "load":
            time.sleep(LOADING_AFTER_S)
        else:
            for line in process.stdout:
                if json.loads(line)["event"] == {"prefill": "prefill", "decode": "token"}[phase]:
                    break
            time.sleep(0.05)
        began = time.perf_counter()
        process.send_signal(signal.SIGINT)
        effect = None
        for line in process.stdout:
            if json.loads(line)["event"] == "finished":
                effect = time.perf_counter()
        status = process.wait()
        ended = time.perf_counter()
    if status != 130:
        raise CannotRun(f"{model}, {phase}: ended with status {status}, not 130; was the answer too short?")
    return Timing((effect or ended) - began, ended - began)


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="How soon Ctrl-C takes effect.")
    parser.add_argument("models", nargs="*", default=["smollm2-135m"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    watch = machine.Watch()
    found: dict[str, dict[str, list[Timing]]] = {}
    try:
        with machine.private_environment() as environment:
            for model in arguments.models:
                found[model] = {
                    phase: [time_interrupt(model, phase, environment) for _ in range(arguments.runs)]
                    for phase in PHASES
                }
    except CannotRun as error:
        say(str(error))
        return 2
    record = machine.provenance(machine.physical_threads())
    disturbance = watch.total()
    print(
        f"Ctrl-C, milliseconds until it takes effect and until the process has ended, {arguments.runs} runs"
    )
    machine.show_provenance(record)
    effects = [t.effect_s for phases in found.values() for times in phases.values() for t in times]
    for model, phases in found.items():
        for phase, times in phases.items():
            effect = statistics.median(t.effect_s for t in times) * 1000
            most = max(t.effect_s for t in times) * 1000
            end = statistics.median(t.end_s for t in times) * 1000
            print(
                f"  {Path(model).name:<28} {phase:<8} effect {effect:4.0f} (max {most:4.0f})  end {end:4.0f}"
            )
    print(machine.busy_note(disturbance))
    document = {
        "benchmark": "interrupt",
        "provenance": record,
        "seconds": {m: {k: [asdict(t) for t in v] for k, v in p.items()} for m, p in found.items()},
        "target_s": TARGET_S,
    }
    print(f"samples: {machine.write_result('interrupt', document, arguments.output)}")
    return 0 if max(effects) <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
