"""Build llama.cpp's own tools beside the engine, to measure llmrun against them.

    python -m benchmarks.build_tools [TOOL...]

Default tools: llama-bench, llama-batched-bench and llama-completion; any other target of llama.cpp works too
(llama-server, ...). Sources and flags are those of scripts/build_engine.py: the llama.cpp tree inside
the pinned source distribution, with the engine's flags. Everything stays in the engine's build cache
in the cache folder of llmrun; nothing is installed into the project's environment. The
first build takes about 3 minutes on 2 cores, a further tool much less.

The measurements start the tools with the loader pointed at the shared libraries of the Python package
(`tool_environment`): both sides run the same machine code, not just the same source, and a tool uses the GPU
backend that the package was built for.

Standard library only. stdout: one path a tool. stderr: everything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.machine import ENGINE, CannotRun, engine_library, library_environment, say
from scripts import build_engine

DEFAULT_TOOLS = ("llama-bench", "llama-batched-bench", "llama-completion")
TOOL_FLAGS = (
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
)
# options of the Python package's own build, unknown to llama.cpp's
PACKAGE_FLAGS = ("-DLLAVA_BUILD",)
SOURCES = "vendor/llama.cpp"


def tools_recipe(*, amx: bool = False) -> build_engine.Recipe:
    """The engine's recipe with the tools' flags; `amx` leaves out the flags that switch AMX off."""
    recipe = build_engine.make_recipe("cpu")
    engine_flags = tuple(flag for flag in recipe.cmake_flags if not flag.startswith(PACKAGE_FLAGS))
    return dataclasses.replace(
        recipe,
        cmake_flags=tuple(dict.fromkeys(engine_flags + TOOL_FLAGS)),
        compiler_flags=() if amx else recipe.compiler_flags,
    )


def build_folder(recipe: build_engine.Recipe) -> Path:
    """Where this recipe's CMake build lives."""
    return build_engine.cache_root() / f"tools-{recipe.key}"


def find_tool(name: str) -> Path:
    """A tool that was built. Raises CannotRun with the command that builds it."""
    path = build_folder(tools_recipe()) / "bin" / name
    if not path.is_file():
        raise CannotRun(f"{name} is not built yet: run `python -m benchmarks.build_tools {name}`")
    return path


def tool_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` in which a tool loads libllama and ggml from the Python package.

    Raises CannotRun when the package is missing or of another version than the tools.
    """
    built, installed = tools_recipe().source.version, version(ENGINE)
    if built != installed:
        raise CannotRun(
            f"the tools are built from {ENGINE} {built}, {installed} is installed: `make setup-dev`"
        )
    return library_environment(engine_library(), environment)


def build_targets(recipe: build_engine.Recipe, targets: Sequence[str], jobs: int) -> Path:
    """Build CMake targets and return the build folder. Raises BuildError."""
    build_engine.check_tools(recipe.backend)
    root, folder = build_engine.cache_root(), build_folder(recipe)
    with build_engine.locked(root / f"{folder.name}.lock", "waiting for another build of the same tools"):
        sources = unpack_sources(recipe.source, root)
        log = root / f"{folder.name}.log"
        say(f"building {', '.join(targets)}; log: {log}")
        with log.open("w") as output:
            for command in cmake_commands(recipe, sources, folder, targets, jobs):
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
                )
                if done.returncode != 0:
                    tail = log.read_text(errors="replace").splitlines()[-20:]
                    raise build_engine.BuildError("\n".join([f"The build failed; {log} ends with:", *tail]))
    return folder


def cmake_commands(
    recipe: build_engine.Recipe, sources: Path, folder: Path, targets: Sequence[str], jobs: int
) -> list[list[str]]:
    """The configure and the build command."""
    flags = " ".join(recipe.compiler_flags)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    return [
        [
            *("cmake", "-S", str(sources), "-B", str(folder), *generator, "-DCMAKE_BUILD_TYPE=Release"),
            *(f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}", *recipe.cmake_flags),
        ],
        ["cmake", "--build", str(folder), "-j", str(jobs), "--target", *targets],
    ]


def unpack_sources(source: build_engine.Source, root: Path) -> Path:
    """The llama.cpp tree of the pinned archive, unpacked once. Raises BuildError."""
    target = root / f"llama.cpp-{source.version}-{source.sha256[:16]}"
    if target.is_dir():
        return target
    archive = build_engine.fetch_sdist(source, root)
    with tempfile.TemporaryDirectory(dir=root, prefix="unpack-") as temporary:
        with tarfile.open(archive) as members:
            members.extractall(temporary, filter="data")
        (tree,) = Path(temporary).glob(f"*/{SOURCES}")
        os.replace(tree, target)
    return target


def main() -> int:
    """Parse, build, print the paths."""
    parser = argparse.ArgumentParser(description="Build llama.cpp's tools with the engine's flags.")
    parser.add_argument("tools", nargs="*", default=list(DEFAULT_TOOLS), metavar="TOOL")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    try:
        folder = build_targets(tools_recipe(), arguments.tools, arguments.jobs)
    except build_engine.BuildError as error:
        say(str(error))
        return 1
    for tool in arguments.tools:
        print(folder / "bin" / tool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
