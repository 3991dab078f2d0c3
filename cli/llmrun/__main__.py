"""Entry point: parse, run, end with the right status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from llmrun.errors import Interrupted


def main() -> None:
    """Run the command line; never returns."""
    signal.signal(signal.SIGINT, _interrupt)
    _open_closed_streams()
    try:
        from llmrun.commands.cli import run_cli

        status = run_cli(sys.argv[1:])
    except Interrupted:  # while the program itself was being loaded
        status = Interrupted.exit_code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: the status is what it is
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # its reader has gone; there is nobody to tell, and Python must not try again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if threading.active_count() > 1:  # a thread is still inside native code: do not tear it down
        os._exit(status)
    sys.exit(status)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise Interrupted("interrupted")


def _open_closed_streams() -> None:
    """Point closed standard streams at the null device: the next file opened would take their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 for good


if __name__ == "__main__":
    main()
