"""What every command shares: the process's streams, logging, and the one place where errors end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from llmrun.errors import Interrupted, LlmrunError, UsageError
from llmrun.ui.streams import Streams

INTERNAL_ERROR = 1


def log_to_stderr() -> None:
    """Show everything that is logged, the engine's own lines included (-v)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root = logging.getLogger("llmrun")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)


def wants_json(arguments: Sequence[str]) -> bool:
    """True when the command line asks for JSON, also one that cannot be parsed otherwise."""
    options = list(arguments)
    if "--" in options:
        options = options[: options.index("--")]
    return "--json" in options or "--stream=json" in options or ("--stream", "json") in pairwise(options)


def run_guarded(body: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run the program and turn whatever ends it into an exit status and one or two lines on stderr."""
    try:
        body()
    except LlmrunError as error:
        if os.environ.get("LLMRUN_DEBUG"):
            logging.getLogger("llmrun").exception("traceback")
        return _report(error, arguments)
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        if error.filename is not None or not _is_output_error(error):
            raise
        return _report(_output_failure(error), arguments)
    except KeyboardInterrupt:
        return _report(Interrupted("interrupted"), arguments)
    return 0


def _report(error: LlmrunError, arguments: Sequence[str]) -> int:
    """Tell the error where it belongs; a reader that has gone cannot be told."""
    from llmrun.ui.errors import print_error

    with suppress(OSError):
        print_error(Streams.of_process(), error, as_json=wants_json(arguments))
    return error.exit_code


def usage_error(message: str) -> UsageError:
    """A parser's complaint as one of ours."""
    return UsageError(message, "see --help")


def _is_output_error(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _output_failure(error: OSError) -> LlmrunError:
    from llmrun.errors import WriteFailure

    _silence_stdout()
    return WriteFailure(f"cannot write the output: {error.strerror}", "free some disk space and run it again")


def _silence_stdout() -> None:
    """Nobody reads stdout any more: keep Python from trying once more, and complaining, at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
