"""The real program as a child process, with folders of its own and nothing of the caller's terminal.

`Cli` runs it on pipes and files, `Terminal` on a pseudo-terminal whose screen pyte interprets. Times are
bounds after which a test fails, never something it measures.
"""

from __future__ import annotations

import codecs
import fcntl
import io
import json
import logging
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import pyte
import pytest

from tests.support.screen import resize, shown_lines
from tests.support.waiting import TIMEOUT_S

PROMPT = ">>> "
_LONGEST_SEQUENCE = 200
_LAST = b"\0"  # written behind the output of a child that has ended; no terminal shows it
_KEPT_VARIABLES = ("PATH", "HOME", "SYSTEMROOT", "TMPDIR", "LD_LIBRARY_PATH")
_SAVE, _RESTORE = "\x1b7", "\x1b8"  # between them stands what lives under a growing text
_ANSI = re.compile(r"\x1b7.*?\x1b8|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>DM]", re.DOTALL)
# a child without a controlling terminal takes its stdin as one, so that ^C becomes a signal
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

Stdin = bytes | Literal["closed"] | None
"""Bytes to read, a closed descriptor, or None for the null device."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished run: exit status and what it wrote."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """stdout, which must be UTF-8."""
        return self.out.decode("utf-8")

    @property
    def document(self) -> dict[str, Any]:
        """stdout as one JSON document on one line, without NaN and infinity."""
        assert self.out.count(b"\n") == 1, self.out
        return strict_json(self.text)

    @property
    def records(self) -> list[dict[str, Any]]:
        """stdout as JSON lines."""
        return [strict_json(line) for line in self.text.splitlines()]


def strict_json(text: str) -> dict[str, Any]:
    """A JSON object, refusing what JSON does not have."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    document = json.loads(text, parse_constant=refuse)
    assert isinstance(document, dict)
    return document


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs llmrun with config, cache and data folders under `folder`."""

    folder: Path
    cache: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def config_dir(self) -> Path:
        return self.folder / "config"

    @property
    def request_log(self) -> list[dict[str, Any]]:
        """Records of the request log."""
        path = self.data_dir / "requests.jsonl"
        return [strict_json(line) for line in path.read_text().splitlines()] if path.exists() else []

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The child's whole environment."""
        return {
            **{name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
            "COLUMNS": "80",
            # two threads that wait for each other crawl when other tests keep the cores busy
            "LLMRUN_THREADS": "1",
            # tests share a cache folder, but not what their prompts have left there
            "LLMRUN_PREFIX_CACHE_MIB": "0",
            "LLMRUN_CONFIG_DIR": str(self.config_dir),
            "LLMRUN_DATA_DIR": str(self.data_dir),
            "LLMRUN_CACHE_DIR": str(self.cache),
            **self.env,
            **(extra or {}),
        }

    def here(self, *arguments: str | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ended:
        """Run in this process, for tests that are not about its borders: a child costs half a second."""
        from llmrun.commands.cli import run_cli

        out, err = io.BytesIO(), io.BytesIO()
        surroundings = self.environment(env)
        log = logging.getLogger("llmrun")
        handlers, level = list(log.handlers), log.level
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8"))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, "utf-8", "backslashreplace"))
            for name in set(os.environ) - surroundings.keys():
                patch.delenv(name)
            for name, value in surroundings.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            status = run_cli([str(argument) for argument in arguments])
            sys.stdout.flush()
            sys.stderr.flush()
            ended = Ended(status, out.getvalue(), err.getvalue().decode("utf-8"))
        log.handlers[:], log.level = handlers, level
        return ended

    def __call__(
        self,
        *arguments: str | bytes | Path,
        stdin: Stdin = None,
        out: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> Ended:
        """Run to the end. `out` redirects stdout, `wrapper` is a program that starts llmrun."""
        command = [*wrapper, *program(*arguments)]
        if stdin == "closed":
            command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else subprocess.DEVNULL,
            stdout=subprocess.PIPE if out is None else out,
            stderr=subprocess.PIPE,
            env=self.environment(env),
            cwd=self.folder,
        )
        with process:
            try:
                written, errors = process.communicate(
                    stdin if isinstance(stdin, bytes) else None, timeout=TIMEOUT_S
                )
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, written or b"", errors.decode("utf-8"))

    def start(self, *arguments: str | bytes | Path, env: Mapping[str, str] | None = None) -> Running:
        """Start on pipes, to be interrupted or left."""
        return Running(
            subprocess.Popen(
                program(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment(env),
                cwd=self.folder,
            )
        )

    def terminal(
        self,
        *arguments: str | Path,
        columns: int = 80,
        lines: int = 24,
        out: IO[bytes] | None = None,
        err: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Start on a pseudo-terminal; `out` and `err` redirect a stream away from it."""
        surroundings = self.environment(env)
        if env is None or "COLUMNS" not in env:
            del surroundings["COLUMNS"]
        return Terminal(program(*arguments), surroundings, self.folder, columns, lines, out, err)


def program(*arguments: str | bytes | Path) -> list[str | bytes]:
    """Command line of llmrun."""
    given = [str(a) if isinstance(a, Path) else a for a in arguments]
    return [sys.executable, "-m", "llmrun", *given]


class Running:
    """A child on pipes that a test interrupts."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._seen = b""

    def read_until(self, mark: bytes) -> None:
        """Read stdout until it holds `mark`."""
        assert self.process.stdout is not None
        while mark not in self._seen:
            piece = os.read(self.process.stdout.fileno(), 4096)
            assert piece, f"stdout ended without {mark!r}: {self._seen!r}"
            self._seen += piece

    def interrupt(self) -> Ended:
        """Ctrl-C as a shell sends it, then the end."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> Ended:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return Ended(self.process.returncode, self._seen + out, err.decode("utf-8"))


class _Screen(pyte.HistoryScreen):
    """A screen that answers what programs ask the terminal, such as where the cursor is."""

    reply_to: int

    def write_process_input(self, data: str) -> None:
        os.write(self.reply_to, data.encode())


class Terminal:
    """llmrun on a pseudo-terminal. Use as a context manager: the child ends with it."""

    def __init__(
        self,
        command: list[str | bytes],
        env: Mapping[str, str],
        folder: Path,
        columns: int,
        lines: int,
        out: IO[bytes] | None,
        err: IO[bytes] | None,
    ) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.modes_before = termios.tcgetattr(self._slave)
        self._screen = _Screen(columns, lines, history=10_000, ratio=0.5)
        self._screen.reply_to = self._master
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._raw = b""
        self._text, self._tail = "", ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._all_read = False
        self._unplugged, self._plug = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *command],
            stdin=self._slave,
            stdout=self._slave if out is None else out,
            stderr=self._slave if err is None else err,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._slave)
        self._reader.join(TIMEOUT_S)
        for descriptor in (self._master, self._unplugged, self._plug):
            with suppress(OSError):  # hung up before
                os.close(descriptor)

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.write(self._plug, b"x")
        self._reader.join(TIMEOUT_S)
        os.close(self._master)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        while piece := self._piece():
            with self._changed:
                if self._process.returncode is not None and _LAST in piece:
                    piece, self._all_read = piece.replace(_LAST, b""), True
                self._raw += piece
                self._add_text(self._decode(piece))
                self._stream.feed(piece)
                self._changed.notify_all()
        with self._changed:
            self._all_read = True
            self._add_text("")
            self._changed.notify_all()

    def _piece(self) -> bytes:
        """What came next; nothing once either end is closed."""
        ready, _, _ = select.select([self._master, self._unplugged], [], [])
        if self._unplugged in ready:
            return b""
        try:
            return os.read(self._master, 65536)
        except OSError:  # every end of the other side is closed
            return b""

    def _read_the_rest(self) -> None:
        """Wait for the last output of a child that has ended: what is written behind it comes after it."""
        with suppress(OSError):  # hung up
            os.write(self._slave, _LAST)
        with self._changed:
            assert self._changed.wait_for(lambda: self._all_read, TIMEOUT_S)

    @property
    def raw(self) -> bytes:
        """All bytes the terminal received."""
        return self._raw

    @property
    def text(self) -> str:
        """The same as text, without escape sequences and the live panel, which may come at any place."""
        return self._text

    def _add_text(self, piece: str) -> None:
        """Only what is new is looked at: an answer without end would take ever longer. A sequence that may
        go on waits for its rest."""
        new = self._tail + piece
        begun, panel = new.rfind("\x1b", -_LONGEST_SEQUENCE), new.rfind(_SAVE)
        whole = len(new) if begun < 0 or new.startswith(_RESTORE, begun) or _ANSI.match(new, begun) else begun
        if panel >= 0 and _RESTORE not in new[panel:]:
            whole = panel
        if piece and new[:whole].endswith("\r"):
            whole -= 1
        self._text += _ANSI.sub("", new[:whole]).replace("\r\n", "\n")
        self._tail = new[whole:]

    @property
    def display(self) -> list[str]:
        """Lines of scrollback and screen, blanks at the end stripped."""
        with self._changed:
            return shown_lines(self._screen)

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes now."""
        return termios.tcgetattr(self._slave)

    def send(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns: int, lines: int) -> None:
        """Another size; the kernel tells the child."""
        with self._changed:
            resize(self._screen, columns, lines)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send the child a signal."""
        self._process.send_signal(number)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something the child does."""
        self._wait(condition, what)

    def wait_for(self, mark: str, *, after: int = 0) -> int:
        """Wait until the text holds `mark` at or after place `after`; the place behind it."""
        self._wait(lambda: self.text.find(mark, after) >= 0, mark)
        return self.text.find(mark, after) + len(mark)

    def wait_for_prompt(self) -> int:
        """Wait until an empty prompt stands at the cursor; the length of the text so far."""
        self._wait(lambda: self.line_at_cursor == PROMPT.strip(), PROMPT)
        return len(self.text)

    @property
    def line_at_cursor(self) -> str:
        """The screen line with the cursor, blanks at the end stripped."""
        return self._screen.display[self._screen.cursor.y].rstrip()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        with self._changed:
            while not condition():
                if self._process.poll() is not None:
                    self._read_the_rest()
                    assert condition(), f"ended without {what!r}:\n{self.text}"
                    return
                assert time.monotonic() < deadline_s, f"no {what!r} in:\n{self.text}"
                self._changed.wait(0.2)

    def ended(self) -> int:
        """Wait for the end and for the last output; the exit status."""
        status = self._process.wait(TIMEOUT_S)
        self._read_the_rest()
        return status


@pytest.fixture
def cli(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """llmrun with folders under tmp_path; what is learnt about the engine is kept for the whole session."""
    folder = tmp_path / "home"
    folder.mkdir()
    cache = tmp_path_factory.getbasetemp() / "llmrun-cache"
    return Cli(folder, cache)
