from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from llmrun.ui.terminal_mode import input_quiet, restore_terminal


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: the user's end and the program's."""
    user, program = pty.openpty()
    yield user, program
    for end in (user, program):
        os.close(end)


class Stopped(Exception):
    pass


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
    long_line = b"x" * 3000 + b"\r"
    with input_quiet(program):
        os.write(user, b"hello\r" + long_line + b"half\x04")
        os.write(program, b"ANSWER\n")
        assert os.read(user, 100) == b"ANSWER\r\n"
        raw = termios.tcgetattr(program)
    # a prompt reads keys, not lines
    raw[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(program, termios.TCSANOW, raw)
    expected = b"hello\r" + long_line + b"half\x04"
    typed = b""
    while len(typed) < len(expected):
        typed += os.read(program, 4096)
    assert typed == expected


def test_typed_lines_also_wait_for_a_reader_of_lines(ends: tuple[int, int]) -> None:
    user, program = ends
    before = termios.tcgetattr(program)
    with input_quiet(program):
        os.write(user, b"abc")
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
        import time
        time.sleep(60)
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
        deadline_s = time.monotonic() + 30
        while termios.tcgetattr(program) != before and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert termios.tcgetattr(program) == before
        os.write(user, b"\n")
        while b"rest" not in seen or not seen.endswith(b"\n"):
            seen += os.read(user, 1000)
        assert b"rest 'typed" in seen
        assert child.wait(30) == 0
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
