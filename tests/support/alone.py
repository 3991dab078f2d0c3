"""A part of a test in a process of its own.

A device of the engine, once registered, stays for the life of the process, and the library ends the process
when it asks one whose server has gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def alone(function: Callable[..., object], *arguments: object) -> None:
    """Call a module's function in a new process, with its arguments as texts; fails as it does there."""
    module = Path(sys.modules[function.__module__].__file__ or "")
    call = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='alone')[sys.argv[2]](*sys.argv[3:])"
    done = subprocess.run(
        [sys.executable, "-c", call, str(module), function.__name__, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
