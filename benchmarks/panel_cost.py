"""What the live panel costs: the generation rate of a chat with it, against the same chat without.

    python -m benchmarks.panel_cost [--rounds 5] [-n 400] [-t THREADS]

Each run is `llmrun chat` on a pseudo-terminal of 80 x 24 that is read as fast as it writes: one message,
greedy, so that both sides generate the same tokens. The two take turns; rates are those of the program's
own request log. Target: at least 0.98 of the rate without.
Exit status: 0 target met, 1 missed, 2 something is missing.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import CannotRun, Outcome
from benchmarks.stats import ratio

TARGET = 0.98
WITH, WITHOUT = "live panel", "no panel"
FLAGS: Mapping[str, tuple[str, ...]] = {WITH: ("--panel", "full"), WITHOUT: ("--no-stats",)}
MESSAGE = "Tell me a long story about a lighthouse."
PROMPT = b">>>"
TIMEOUT_S = 120.0
QUIET_S = 1.0


def chat_rate(asked: Sequence[str], environment: Mapping[str, str]) -> float:
    """Tokens a second of one answer on a pseudo-terminal. Raises CannotRun if there is none."""
    command = [*machine.llmrun_command(), "chat", *asked, "--temp", "0"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**environment, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        _read_until_prompt(terminal)
        os.write(terminal, MESSAGE.encode() + b"\r")
        _read_until_prompt(terminal)
        os.write(terminal, b"\x04")
        _drain(terminal)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    log = Path(environment["LLMRUN_DATA_DIR"]) / "requests.jsonl"
    rate = json.loads(log.read_text().splitlines()[-1])["timings"]["predicted_per_second"]
    if not isinstance(rate, float):
        raise CannotRun("the answer had a single token; nothing to compare")
    return rate


def _read_until_prompt(terminal: int) -> None:
    """Read on until the line editor has drawn its prompt; raises CannotRun if it does not come."""
    deadline, seen = time.monotonic() + TIMEOUT_S, b""
    while time.monotonic() < deadline:
        readable, _, _ = select.select([terminal], [], [], QUIET_S)
        if readable:
            seen += os.read(terminal, 65536)
        elif PROMPT in seen.rsplit(b"\n", 1)[-1]:
            return
    raise CannotRun("the chat did not come back to its prompt")


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # the other side has closed
        return


def measure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Outcome:
    """Both kinds of chat, round by round; the first round fills the page cache and does not count."""
    rates: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    for number in range(arguments.rounds + 1):
        for name, flags in FLAGS.items():
            asked = (str(arguments.model), "-n", str(arguments.n), "-t", str(arguments.threads), *flags)
            rate = chat_rate(asked, environment)
            if number:
                rates[name].append(rate)
    title = f"chat, generation tok/s, {arguments.rounds} rounds, interleaved"
    return Outcome(title, lambda: show(rates), {"tokens_per_second": rates, "target": TARGET})


def show(rates: Mapping[str, Sequence[float]]) -> bool:
    """Print the samples and how they compare; True if the target is met."""
    compared = ratio(rates[WITH], rates[WITHOUT])
    for name, found in rates.items():
        print(f"  {name:<12} {'  '.join(f'{rate:6.1f}' for rate in found)}")
    print(
        f"with / without: {compared.of_medians:.3f} of medians; pairs {compared.paired_median:.3f} "
        f"({compared.paired_min:.3f} to {compared.paired_max:.3f}); target {TARGET}"
    )
    return compared.of_medians >= TARGET


def main() -> int:
    """Parse, measure, print, write."""
    parser = machine.options("Generation rate of a chat with and without the live panel.", rounds=5)
    parser.add_argument("-n", type=int, default=400, help="tokens an answer may have")
    return machine.measurement("panel_cost", parser, measure)


if __name__ == "__main__":
    sys.exit(main())
