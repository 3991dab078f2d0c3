"""Entry point: parse, run, end with the right status."""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Run the command line; never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from llmrun.commands.cli import run_cli

    status = run_cli(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 0  # its reader has gone; there is nobody to tell
    if threading.active_count() > 1:  # a thread is still inside native code: do not tear it down
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
