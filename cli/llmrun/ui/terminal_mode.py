"""The terminal while an answer streams: keys are not echoed into it, and none is lost.

Typed characters would land in the middle of the answer. With echo off they wait in the terminal's queue
until the next prompt reads them. Line mode goes off as well: the kernel would cut a line at 4,096 bytes and
swallow Ctrl-D, and keys now reach the prompt as if pressed there. Signals stay on, so that Ctrl-C works, and
no longer empty the queue (NOFLSH).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
_INPUT_FLAGS, _LOCAL_FLAGS, _CONTROL_CHARACTERS = 0, 3, 6
_restores: list[Callable[[], None]] = []


@contextmanager
def input_quiet(stdin_fd: int, write: Callable[[str], object] | None = None) -> Iterator[None]:
    """Keep typed keys out of the output; on leaving, however, the terminal is exactly as it was.

    With `write`, which goes to the terminal, a page pasted meanwhile stays one message (bracketed paste).
    Does nothing where standard input is no terminal, or belongs to another job.
    """
    try:
        import termios
    except ImportError:  # no POSIX terminal here
        yield
        return
    try:
        before = termios.tcgetattr(stdin_fd)
    except termios.error:
        yield
        return
    if not _is_ours(stdin_fd):
        yield
        return

    def restore() -> None:
        try:
            if write:
                write(_PASTE_OFF)
        finally:
            _set_modes(stdin_fd, before)

    _restores.append(restore)
    try:
        with _again_after_suspension(lambda: _set_modes(stdin_fd, _quiet(before))):
            _set_modes(stdin_fd, _quiet(before))
            if write:
                write(_PASTE_ON)
            yield
    finally:
        if restore in _restores:
            _restores.remove(restore)
            restore()


def restore_terminal() -> None:
    """Undo `input_quiet` now, for a process that is to end in the middle of it."""
    while _restores:
        _restores.pop()()


@contextmanager
def _again_after_suspension(apply: Callable[[], None]) -> Iterator[None]:
    """Call `apply` when the program goes on after Ctrl-Z: the shell has put its own modes back meanwhile."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCONT, lambda *_: apply())
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def _quiet(modes: list[Any]) -> list[Any]:
    import termios

    quiet = list(modes)
    quiet[_INPUT_FLAGS] &= ~termios.ICRNL  # Enter stays the key it is at the prompt
    quiet[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    quiet[_LOCAL_FLAGS] |= termios.ISIG | termios.NOFLSH
    characters = list(modes[_CONTROL_CHARACTERS])
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    quiet[_CONTROL_CHARACTERS] = characters
    return quiet


def _set_modes(stdin_fd: int, modes: list[Any]) -> None:
    """Give the terminal these modes, if it is still there and this job's."""
    import termios

    with suppress(termios.error):  # the terminal has been closed
        if _is_ours(stdin_fd):
            termios.tcsetattr(stdin_fd, termios.TCSANOW, modes)


def _is_ours(stdin_fd: int) -> bool:
    """False in the background, where changing modes would stop the process."""
    try:
        return os.tcgetpgrp(stdin_fd) == os.getpgrp()
    except OSError:  # not the controlling terminal: there are no jobs
        return True
