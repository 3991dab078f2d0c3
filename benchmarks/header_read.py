"""How long a model file's header takes to read: llmrun's reader against `gguf.GGUFReader`.

    python -m benchmarks.header_read [MODEL ...] [--rounds 5]

Both run in this process, in turns, on files in the page cache; llmrun's figure includes the checks that a
file has to pass before the engine sees it. Exit status: 0 llmrun is faster on every file, 1 it is not, 2
something is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import CannotRun, say
from benchmarks.stats import ratio

OURS, PEER = "llmrun", "gguf.GGUFReader"


def read_ours(path: Path) -> None:
    """Read and check as `llmrun run` does before it loads."""
    from llmrun.gguf.check import check_runnable
    from llmrun.gguf.reader import read_header

    check_runnable(read_header(path), name=path.name)


def read_peer(path: Path) -> None:
    """Read with the reference package. Raises CannotRun where it is missing."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise CannotRun("the gguf package is not installed; `make test` installs it") from error
    GGUFReader(path)


def seconds(read: Callable[[Path], None], path: Path) -> float:
    """Time of one read."""
    began = time.perf_counter()
    read(path)
    return time.perf_counter() - began


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="Header read time of llmrun and gguf.GGUFReader.")
    parser.add_argument("models", nargs="*", type=Path, help="default: the embedded model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    watch = machine.Watch()
    found: dict[str, dict[str, list[float]]] = {}
    try:
        for path in arguments.models or [machine.embedded_model()]:
            times: dict[str, list[float]] = {OURS: [], PEER: []}
            for turn in range(arguments.rounds + 1):
                for name, read in ((OURS, read_ours), (PEER, read_peer)):
                    taken_s = seconds(read, path)
                    if turn:  # the first fills the page cache and imports
                        times[name].append(taken_s)
            found[path.name] = times
    except CannotRun as error:
        say(str(error))
        return 2
    record, disturbance = machine.provenance(1), watch.total()
    print(f"header read, milliseconds, {arguments.rounds} rounds, in turns")
    machine.show_provenance(record)
    for name, times in found.items():
        ours, peer = (statistics.median(times[who]) * 1000 for who in (OURS, PEER))
        faster = ratio(times[PEER], times[OURS]).of_medians
        print(f"  {name:<34} {OURS} {ours:7.1f}   {PEER} {peer:8.1f}   {faster:6.1f} times as fast")
    print(machine.busy_note(disturbance))
    document = {"benchmark": "header_read", "provenance": record, "seconds": found}
    print(f"samples: {machine.write_result('header_read', document, arguments.output)}")
    won = all(statistics.median(t[OURS]) < statistics.median(t[PEER]) for t in found.values())
    return 0 if won else 1


if __name__ == "__main__":
    sys.exit(main())
