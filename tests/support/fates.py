"""What becomes of a process that runs a model: the engine's own verdict, for tests of the header checks.

The engine may end the process, so each model is loaded in a child; the children are forked from one process
that has the engine's libraries loaded, which costs some hundredths of a second for each.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

REPORTED = 3  # the engine said what is wrong
RAN = 0


def fates(paths: Sequence[Path]) -> list[int]:
    """For each model `RAN`, `REPORTED`, or minus the signal that ended its process."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fates", *map(str, paths)],
        cwd=root,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    return [int(line) for line in done.stdout.splitlines()]


def _run(path: str) -> None:
    """Load, read a text, prefill and decode some tokens, with a small and a larger context."""
    from llmrun.engine.api import ContextParams, ModelParams
    from llmrun.engine.context import Context
    from llmrun.engine.model import Model

    model = Model(
        ModelParams(path, gpu_layers=0),
        extra_bufts=False,
        progress=lambda _: None,
        cancelled=threading.Event(),
    )
    if model.meta("tokenizer.ggml.model") != "no_vocab":
        model.vocab.tokenize("Hi there", add_special=True, parse_special=True)
    for n_ctx, n_ubatch in ((256, 512), (1024, 64)):
        context = Context(
            model, ContextParams(n_ctx=n_ctx, n_ubatch=n_ubatch, n_threads=1, n_threads_batch=1)
        )
        assert context.prefill(0, range(100)) == "ok"
        assert all(context.decode([(0, 1)]) == "ok" for _ in range(3))
        context.close()


def _fate(path: str) -> int:
    """The exit code or minus the signal of a child that runs the model."""
    from llmrun.errors import LlmrunError

    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            os.dup2(devnull, 2)
            try:
                _run(path)
            except LlmrunError:
                os._exit(REPORTED)
            os._exit(RAN)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Print the fate of each path given."""
    from llmrun.engine.bindings import library

    library()
    for path in sys.argv[1:]:
        print(_fate(path), flush=True)


if __name__ == "__main__":
    main()
