from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from llmrun.ui.terminal_mode import input_quiet, restore_terminal

from tests.support.waiting import TIMEOUT_S, wait_until


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: the user's end and the program's."""
    user, program = pty.openpty()
    yield user, program
    for end in (user, program):
        os.close(end)


class Stopped(Exception):
    pass


def wait_for_input(program: int, count: int) -> None:
    """Until so many bytes wait for the program: the kernel hands them over a moment after the write."""
    waiting = array("i", [0])

    def there() -> bool:
        fcntl.ioctl(program, termios.FIONREAD, waiting)
        return waiting[0] == count

    wait_until(there, "input")


def read_bytes(end: int, count: int) -> bytes:
    """So many bytes, in however many pieces they come."""
    found = b""
    while len(found) < count:
        found += os.read(end, count - len(found))
    return found


def test_modes_are_restored_exactly_also_after_an_error(ends: tuple[int, int]) -> None:
    _, program = ends
    modes = termios.tcgetattr(program)
    modes[0] ^= termios.IXON
    modes[6][termios.VMIN] = 3
    termios.tcsetattr(program, termios.TCSANOW, modes)
    before = termios.tcgetattr(program)
    for error in (None, Stopped, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error) if error else nullcontext(), input_quiet(program):
            during = termios.tcgetattr(program)
            if error:
                raise error
        assert not during[3] & termios.ECHO
        assert during[3] & termios.ISIG
        assert termios.tcgetattr(program) == before


def test_a_process_that_ends_in_the_middle_leaves_the_terminal_as_it_was(ends: tuple[int, int]) -> None:
    _, program = ends
    before = termios.tcgetattr(program)
    out = io.StringIO()
    with input_quiet(program, out.write):
        restore_terminal()
        assert termios.tcgetattr(program) == before
        assert out.getvalue().endswith("l")
        written = out.getvalue()
    assert termios.tcgetattr(program) == before
    assert out.getvalue() == written


def test_keys_are_not_echoed_and_wait_for_the_next_reader(ends: tuple[int, int]) -> None:
    user, program = ends
    expected = b"hello\r" + b"x" * 3000 + b"\r" + b"half\x04"
    with input_quiet(program):
        os.write(user, expected)
        wait_for_input(program, len(expected))
        os.write(program, b"ANSWER\n")
        assert read_bytes(user, 8) == b"ANSWER\r\n"
        raw = termios.tcgetattr(program)
    # a prompt reads keys, not lines
    raw[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(program, termios.TCSANOW, raw)
    assert read_bytes(program, len(expected)) == expected


def test_typed_lines_also_wait_for_a_reader_of_lines(ends: tuple[int, int]) -> None:
    user, program = ends
    before = termios.tcgetattr(program)
    with input_quiet(program):
        os.write(user, b"abc")
        wait_for_input(program, 3)
    assert termios.tcgetattr(program) == before
    os.write(user, b"def\n")
    assert os.read(program, 100) in (b"abc", b"abcdef\n")


def test_pasting_is_bracketed_meanwhile(ends: tuple[int, int]) -> None:
    _, program = ends
    out = io.StringIO()
    with input_quiet(program, out.write):
        assert out.getvalue() == "\x1b[?2004h"
    assert out.getvalue() == "\x1b[?2004h\x1b[?2004l"


def test_a_failing_terminal_write_still_restores(ends: tuple[int, int]) -> None:
    _, program = ends
    before = termios.tcgetattr(program)

    def fail(_: str) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), input_quiet(program, fail):
        pass
    assert termios.tcgetattr(program) == before


def test_a_file_is_no_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    with (tmp_path / "input").open("w+") as file, input_quiet(file.fileno(), out.write):
        pass
    assert out.getvalue() == ""


def test_a_terminal_closed_meanwhile_is_no_error() -> None:
    user, program = pty.openpty()
    try:
        with input_quiet(program):
            os.close(user)
    finally:
        os.close(program)


CHILD = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from llmrun.ui.terminal_mode import input_quiet
try:
    with input_quiet(0):
        print("ready", flush=True)
        import signal
        signal.pause()
except KeyboardInterrupt:
    print("rest", repr(sys.stdin.readline()), flush=True)
"""


def test_ctrl_c_is_a_signal_and_drops_nothing_typed_before_it(ends: tuple[int, int]) -> None:
    user, program = ends
    before = termios.tcgetattr(program)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=program, stdout=program, stderr=program, start_new_session=True
    )
    try:
        seen = b""
        while b"ready" not in seen:
            seen += os.read(user, 1000)
        os.write(user, b"typed\x03")
        wait_until(lambda: termios.tcgetattr(program) == before, "end of the quiet")
        os.write(user, b"\n")
        while b"rest" not in seen or not seen.endswith(b"\n"):
            seen += os.read(user, 1000)
        assert b"rest 'typed" in seen
        assert child.wait(TIMEOUT_S) == 0
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
