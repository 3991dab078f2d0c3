"""Shows that llmrun survives an engine built with AMX. By hand, on an x86-64 CPU that has AMX.

    python -m benchmarks.amx_probe [--library DIR]

GCC 12 drops the stores that configure AMX tiles, so a library built with AMX dies at the first batch of
several tokens. The project's own build switches AMX off; a library from elsewhere may have it. This builds
one without the project's `-mno-amx` flags (or takes DIR, a folder with libllama and the ggml libraries),
then shows three things: what the library does when asked to compute (the probe llmrun itself uses), that
`llmrun run` answers with it all the same, and that the same holds for a second start, when the verdict is
remembered. On a CPU without AMX there is nothing to show.

Exit status: 0 shown, or no AMX here; 1 llmrun failed; 2 something is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import machine
from benchmarks.build_tools import build_targets, tools_recipe
from benchmarks.machine import CannotRun, say
from scripts.build_engine import BuildError, cpu_features

# the bindings load libllama from this folder instead of their own
LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"
PROMPT = "List three primary colours and say one sentence about each of them."


def has_amx(features: str) -> bool:
    """Whether the CPU's instruction sets, separated by blanks, contain AMX tiles."""
    return "amx_tile" in features.split()


def library_folder(given: Path | None) -> Path:
    """The library under test. Raises CannotRun when DIR holds none, BuildError when it cannot be built."""
    folder = given or build_targets(tools_recipe(amx=True), ["llama"], os.cpu_count() or 1) / "bin"
    if not any(folder.glob("libllama.*")):
        raise CannotRun(f"{folder} holds no libllama: give the folder of a build's shared libraries")
    return folder.absolute()


def show_probe(environment: Mapping[str, str]) -> None:
    """Print how far the library's own computation gets: plain weights, then repacked ones."""
    command = [sys.executable, "-m", "llmrun.engine.probe", "compute"]
    probe = subprocess.run(
        command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    stages = probe.stdout.split()
    print(f"the library alone: stages passed {stages}, exit status {probe.returncode}")
    if "extra" in stages:
        print("  it does not crash: this compiler sets the tiles up correctly")
    elif probe.returncode < 0:
        print("  it crashes with repacked weights, as expected of GCC 12")


def show_llmrun(environment: Mapping[str, str], title: str) -> bool:
    """Run llmrun with the library; True if it answered."""
    command = [*machine.llmrun_command(), "run", str(machine.embedded_model()), PROMPT]
    done = subprocess.run(
        [*command, "-n", "24", "--temp", "0", "-c", "512"],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"llmrun, {title}: exit status {done.returncode}, answer {done.stdout.strip()!r}")
    if done.stderr.strip():
        print(f"  stderr: {done.stderr.strip()}")
    return done.returncode == 0 and bool(done.stdout.strip())


def main() -> int:
    """Parse, build, show."""
    parser = argparse.ArgumentParser(description="Show that llmrun survives an engine built with AMX.")
    parser.add_argument("--library", type=Path, metavar="DIR", help="use these libraries, build nothing")
    arguments = parser.parse_args()
    if not has_amx(cpu_features()):
        print(f"{machine.cpu_model()} has no AMX: nothing to show here")
        return 0
    try:
        library = library_folder(arguments.library)
        with machine.private_environment() as private:
            environment = {**machine.library_environment(library, private), LIBRARY_VARIABLE: str(library)}
            environment["GGML_NO_BACKTRACE"] = "1"
            print(f"{machine.cpu_model()}, library {library}")
            show_probe(environment)
            answered = [show_llmrun(environment, title) for title in ("first start", "second start")]
    except (CannotRun, BuildError) as error:
        say(str(error))
        return 2
    print("llmrun survives it" if all(answered) else "LLMRUN DOES NOT SURVIVE IT")
    return 0 if all(answered) else 1


if __name__ == "__main__":
    sys.exit(main())
