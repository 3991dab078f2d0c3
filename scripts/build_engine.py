"""Build the inference engine's wheel once per machine and print its path.

    python scripts/build_engine.py [--gpu cpu|cuda|metal|vulkan|rocm] [--sdist]

The engine is llama.cpp behind the llama-cpp-python bindings. Its source distribution is pinned by hash in
requirements/engine.lock; the wheel built from it is kept in llmrun's cache folder (LLMRUN_CACHE_DIR moves
it), under a key made of everything that changes the result: sources, flags, backend, interpreter, compiler
choice and, since the build tunes for the CPU at hand, the CPU's instruction sets.

Two flags are there for a reason. GCC 12 miscompiles llama.cpp's AMX kernels (the tile configuration is
dropped and the first batch of several tokens crashes), so AMX is off. OpenMP is off because its spinning
barriers lose most of the speed when another program uses a core.

Standard library only, for it runs before anything is installed but pip and the build backend
(requirements/build.lock) in the environment whose Python runs it. stdout: the path. stderr: everything else.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements" / "engine.lock"
CMAKE_FLAGS = ("-DGGML_RPC=ON", "-DGGML_OPENMP=OFF", "-DLLAVA_BUILD=OFF", "-DLLAMA_BUILD_TESTS=OFF")
NO_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
BACKEND_FLAGS = {
    "cpu": (),
    "cuda": ("-DGGML_CUDA=ON",),
    "metal": ("-DGGML_METAL=ON",),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "rocm": ("-DGGML_HIP=ON",),
}
# the tool each backend's build cannot do without, and where it comes from
BACKEND_TOOLS = {
    "cuda": (("nvcc",), "the NVIDIA CUDA toolkit"),
    "vulkan": (("glslc",), "the Vulkan SDK (Debian and Ubuntu: apt install libvulkan-dev glslc)"),
    "rocm": (("hipcc", "hipconfig"), "AMD ROCm with its HIP development files"),
}
# where they are installed without being put on PATH, which is all that CMake looks at
TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/rocm/bin")
CMAKE_AT_LEAST = (3, 21)
LOG_TAIL_LINES = 25
ISA_FLAG = re.compile(
    r"^(sse|ssse|avx|amx|fma|f16c|bmi|aes|vaes|pclmul|vpclmul|gfni|sha|movbe|popcnt|abm|adx)"
)


class BuildError(Exception):
    """The engine cannot be built; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """The pinned source distribution."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what the build yields."""

    source: Source
    backend: str
    cmake_flags: tuple[str, ...]
    compiler_flags: tuple[str, ...]
    compilers: tuple[str, str]
    interpreter: str
    cpu: str

    @property
    def key(self) -> str:
        """Cache folder name: readable in front, a digest of every field behind."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        return f"{self.source.version}-{self.backend}-{digest}"


def read_lock(text: str) -> Source:
    """The single pinned requirement of a lock file. Raises BuildError if there is not exactly one."""
    pins = re.findall(r"^([\w-]+)==(\S+)", text, flags=re.MULTILINE)
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", text)
    if len(pins) != 1 or len(hashes) != 1:
        raise BuildError(f"{LOCK} must pin one package with one hash; run `make lock`.")
    return Source(pins[0][0], pins[0][1], hashes[0])


def cpu_features() -> str:
    """The CPU's instruction sets as one line: what `-march=native` will compile for."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            label, _, value = line.partition(":")
            if label.strip() == "flags":
                return " ".join(sorted(flag for flag in value.split() if ISA_FLAG.match(flag)))
            if label.strip() == "Features":
                return " ".join(sorted(value.split()))
    if sys.platform == "darwin":
        brand = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(brand, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor()


def amx_flags(compiler: str) -> tuple[str, ...]:
    """The flags that turn AMX off on x86-64, unless the compiler is too old to know them (or AMX)."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return ()
    command = shlex.split(compiler)
    # without a compiler the key must still name the build that a cache may hold
    if shutil.which(command[0]) is None:
        return NO_AMX
    probe = [*command, *NO_AMX, "-x", "c", "-E", os.devnull]
    return NO_AMX if subprocess.run(probe, capture_output=True, check=False).returncode == 0 else ()


def make_recipe(backend: str) -> Recipe:
    """The recipe for this machine. Raises BuildError for an unknown backend."""
    if backend not in BACKEND_FLAGS:
        raise BuildError(f"GPU={backend} is not a backend; use one of {', '.join(BACKEND_FLAGS)}.")
    compilers = (os.environ.get("CC", "cc"), os.environ.get("CXX", "c++"))
    return Recipe(
        source=read_lock(LOCK.read_text()),
        backend=backend,
        cmake_flags=CMAKE_FLAGS + BACKEND_FLAGS[backend],
        compiler_flags=amx_flags(compilers[0]),
        compilers=compilers,
        interpreter=f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}",
        cpu=cpu_features(),
    )


def cache_root() -> Path:
    """`engine` in the cache folder of llmrun, whose place the program computes in the same way."""
    if own := os.environ.get("LLMRUN_CACHE_DIR"):
        return Path(own).expanduser().absolute() / "engine"
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(base).expanduser().absolute() / "llmrun" / "engine"


def check_tools(backend: str) -> None:
    """Raise BuildError naming every tool the build lacks."""
    missing = []
    if not _cmake_is_new_enough():
        missing.append(f"cmake {CMAKE_AT_LEAST[0]}.{CMAKE_AT_LEAST[1]} or newer")
    for variable, default in (("CC", "cc"), ("CXX", "c++")):
        compiler = os.environ.get(variable, default)
        if shutil.which(shlex.split(compiler)[0]) is None:
            missing.append(f"a {'C++' if variable == 'CXX' else 'C'} compiler ({compiler})")
    if not (shutil.which("ninja") or shutil.which("make")):
        missing.append("ninja or make")
    lines = ["Building the engine needs " + ", ".join(missing) + "."] if missing else []
    if missing:
        lines.append("  Debian, Ubuntu: apt install cmake g++ ninja-build")
        lines.append("  Fedora: dnf install cmake gcc-c++ ninja-build")
        lines.append("  macOS: xcode-select --install; brew install cmake")
    if backend == "metal" and sys.platform != "darwin":
        lines.append("GPU=metal works on macOS only.")
    tools, package = BACKEND_TOOLS.get(backend, ((), ""))
    if tools and not any(_find_tool(tool) for tool in tools):
        lines.append(f"GPU={backend} needs {tools[0]}, which comes with {package}; it is not on PATH.")
    if lines:
        raise BuildError("\n".join(lines))


def _find_tool(name: str) -> str | None:
    return shutil.which(name, path=_search_path())


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *TOOL_FOLDERS))


def _cmake_is_new_enough() -> bool:
    if shutil.which("cmake") is None:
        return False
    answer = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", answer)
    return found is not None and (int(found[1]), int(found[2])) >= CMAKE_AT_LEAST


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`; say `waiting` first if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch_sdist(source: Source, root: Path) -> Path:
    """The source archive, from the cache or the package index, its hash verified. Raises BuildError."""
    folder = root / "sdist"
    archive = folder / f"{source.name.replace('-', '_')}-{source.version}.tar.gz"
    with locked(folder / ".lock", "waiting for another download of the engine's source"):
        if archive.is_file() and _sha256(archive) == source.sha256:
            return archive
        say(f"downloading the engine's source, {source.name} {source.version} (73 MiB)")
        log = root / "download.log"
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            command = _pip("download", "--no-binary", source.name, "--dest", temporary, "-r", str(LOCK))
            if _run(command, log, _environment((), ())) != 0:
                raise BuildError(_failure("The engine's source could not be downloaded.", log))
            os.replace(Path(temporary) / archive.name, archive)
    return archive


def build(recipe: Recipe, root: Path) -> Path:
    """The wheel for this recipe, from the cache if it is there. Raises BuildError."""
    folder = root / recipe.key
    if wheel := _wheel_in(folder):
        return wheel
    with locked(root / f"{recipe.key}.lock", "waiting for another build of the same engine"):
        if wheel := _wheel_in(folder):
            return wheel
        check_tools(recipe.backend)
        archive = fetch_sdist(recipe.source, root)
        return _compile(recipe, archive, root, folder)


def _compile(recipe: Recipe, archive: Path, root: Path, folder: Path) -> Path:
    log = root / f"{recipe.key}.log"
    more = "" if recipe.backend == "cpu" else f", longer with GPU={recipe.backend}"
    what = f"{recipe.source.name} {recipe.source.version}, {recipe.backend}"
    say(f"building the engine ({what}): once per machine, about 3 minutes on 2 cores{more}; log: {log}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=root, prefix="build-") as temporary:
        made = Path(temporary) / "wheel"
        command = _pip("wheel", "--no-index", "--wheel-dir", str(made), "--verbose", str(archive))
        environment = _environment(recipe.cmake_flags, recipe.compiler_flags)
        if _run(command, log, environment | {"TMPDIR": temporary}) != 0:
            raise BuildError(_failure("The engine did not build.", log))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)
    say(f"engine built in {time.monotonic() - began:.0f} s")
    wheel = _wheel_in(folder)
    if wheel is None:
        raise BuildError(_failure("The build ended without a wheel.", log))
    return wheel


def _pip(verb: str, *arguments: str) -> list[str]:
    base = [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", "--no-input", "--no-deps"]
    # pip's own wheel cache knows nothing of flags or CPUs: a wheel of another recipe could come back
    return [*base, "--no-cache-dir", "--no-build-isolation", *arguments]


def _environment(cmake_flags: tuple[str, ...], compiler_flags: tuple[str, ...]) -> dict[str, str]:
    """The caller's environment with the build's flags in place of its own, which the key does not cover."""
    flags = " ".join(compiler_flags)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": str(cores)} | os.environ
    own = {"CMAKE_ARGS": " ".join(cmake_flags), "CFLAGS": flags, "CXXFLAGS": flags, "PATH": _search_path()}
    return environment | own


def _run(command: list[str], log: Path, environment: dict[str, str]) -> int:
    with log.open("w") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        ).returncode


def _failure(what: str, log: Path) -> str:
    tail = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"{what} The log is {log}; it ends with:", *(f"  {line}" for line in tail)])


def _wheel_in(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def say(line: str) -> None:
    """One line of progress for the person waiting."""
    print(f"llmrun: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Parse, build, print the path."""
    parser = argparse.ArgumentParser(description="Build the inference engine's wheel and print its path.")
    parser.add_argument("--gpu", default="cpu", metavar="BACKEND", help=", ".join(BACKEND_FLAGS))
    parser.add_argument("--sdist", action="store_true", help="fetch the source archive only, print its path")
    parser.add_argument("--key", action="store_true", help="print the cache folder of this build and stop")
    arguments = parser.parse_args()
    root = cache_root()
    try:
        recipe = make_recipe(arguments.gpu)
        if arguments.key:
            print(root / recipe.key)
        elif arguments.sdist:
            print(fetch_sdist(recipe.source, root))
        else:
            print(build(recipe, root))
    except BuildError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
