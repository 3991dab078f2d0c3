"""What every command shares: the process's streams, logging, and the one place where errors end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile

from llmrun.engine.abort import on_abort
from llmrun.errors import DoesNotFit, Interrupted, LlmrunError
from llmrun.metrics.clock import Clock, process_clock
from llmrun.ui.streams import Streams
from llmrun.ui.visible import visible


class InternalFault(LlmrunError):
    """A bug, as scripts are told of it; never raised."""

    code = "internal"
    exit_code = 1


class _VisibleFormatter(logging.Formatter):
    """The engine logs names and values of model files as they are."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def log_to_stderr() -> None:
    """Show everything that is logged, the engine's own lines included (-v)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("%(name)s: %(message)s"))
    root = logging.getLogger("llmrun")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    if not os.environ.get("LLMRUN_DEBUG"):  # the engine's own debugging lines run to thousands
        logging.getLogger("llmrun.native").setLevel(logging.INFO)


def wants_json(arguments: Sequence[str]) -> bool:
    """True when the command line asks for JSON, also one that cannot be parsed otherwise."""
    return "--json" in _options(arguments) or wants_lines(arguments)


def wants_lines(arguments: Sequence[str]) -> bool:
    """True when it asks for a JSON object a line."""
    options = _options(arguments)
    return "--stream=json" in options or ("--stream", "json") in pairwise(options)


def _options(arguments: Sequence[str]) -> list[str]:
    return list(takewhile(lambda argument: argument != "--", arguments))


def run_guarded(body: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run the program and turn whatever ends it into an exit status and one or two lines on stderr."""
    clock = process_clock()
    on_abort(lambda error: _end(error, arguments, clock))
    try:
        body()
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 the last place where one can be told
        if os.environ.get("LLMRUN_DEBUG"):
            import traceback

            traceback.print_exc()
        return _report(_expected(error), arguments, clock)
    finally:
        on_abort(None)
    return 0


def _end(error: LlmrunError, arguments: Sequence[str], clock: Clock) -> None:
    """End the process with an error of which the library would not return."""
    from llmrun.ui.terminal_mode import restore_terminal

    with suppress(OSError):
        restore_terminal()
    status = _report(error, arguments, clock)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _expected(error: BaseException) -> LlmrunError:
    """What ended the program, as one of its own errors."""
    if isinstance(error, LlmrunError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, OSError) and error.filename is None and _is_output_error(error):
        return _output_failure(error)
    if _is_lack_of_memory(error):
        return DoesNotFit(
            "memory ran out", "use a smaller -c or a smaller model, or raise the limit on memory"
        )
    return InternalFault(
        f"internal fault, {type(error).__name__}: {error}",
        "this is a bug in llmrun; LLMRUN_DEBUG=1 shows where it is",
    )


def _report(error: LlmrunError, arguments: Sequence[str], clock: Clock) -> int:
    """Tell the error where it belongs; a reader that has gone cannot be told."""
    from llmrun.ui.errors import print_error

    with suppress(OSError):
        print_error(
            Streams.of_process(),
            error,
            as_json=wants_json(arguments),
            line_at_s=clock() if wants_lines(arguments) else None,
        )
    return error.exit_code


def _is_output_error(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _is_lack_of_memory(error: BaseException) -> bool:
    import errno

    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    no_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return no_thread or isinstance(error, MemoryError)


def _output_failure(error: OSError) -> LlmrunError:
    from llmrun.errors import WriteFailure

    _silence_stdout()
    return WriteFailure(f"cannot write the output: {error.strerror}", "free some disk space and run it again")


def _silence_stdout() -> None:
    """Nobody reads stdout any more: keep Python from trying once more, and complaining, at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
