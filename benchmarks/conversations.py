"""The same messages asked of llmrun, llama-server and the `Llama` class, each answer's first token timed.

A `Script` is a system text and messages. As a conversation each message follows the answers before it, which
are the side's own; as independent questions each stands alone after the system text. Every side keeps one
model open for a whole script: llmrun and the class in a child process that reads the script from stdin,
llama-server behind its HTTP interface, where the time of a request on the loopback counts as well.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.build_tools import find_tool, tool_environment
from benchmarks.machine import CannotRun

N_CTX = 8192
STARTS_WITHIN_S = 60.0
SERVER = "llama-server"


@dataclass(frozen=True, slots=True)
class Script:
    """What is asked; answers have `n_predict` tokens at most."""

    system: str
    messages: tuple[str, ...]
    n_predict: int = 32
    independent: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """`ttft_s` from handing the message over to the first text in the caller's hands; `cached_n` of
    `prompt_n` tokens were not evaluated, None where a side does not tell. `after_s` from the complete answer
    until the next message can be handed over."""

    ttft_s: float
    prompt_n: int | None = None
    cached_n: int | None = None
    after_s: float = 0.0


def ask_child(
    module: str, script: Script, model: Path, threads: int, environment: Mapping[str, str]
) -> list[Answer]:
    """Run a script in `python -m module`. Raises CannotRun if it fails."""
    command = [sys.executable, "-m", module, str(model), str(threads)]
    done = subprocess.run(
        command,
        env=dict(environment),
        input=json.dumps(asdict(script)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CannotRun(f"{module} failed:\n{done.stderr[-1000:]}")
    return [Answer(**json.loads(line)) for line in done.stdout.splitlines()]


def read_script() -> Script:
    """The script on stdin, in a child."""
    given = json.load(sys.stdin)
    return Script(**{**given, "messages": tuple(given["messages"])})


def converse(script: Script, ask: Callable[[list[dict[str, str]]], tuple[Answer, str]]) -> Iterator[Answer]:
    """Run a script on something that answers lists of messages."""
    head = [{"role": "system", "content": script.system}] if script.system else []
    history: list[dict[str, str]] = []
    for message in script.messages:
        asked = {"role": "user", "content": message}
        answer, text = ask([*head, *history, asked])
        if not script.independent:
            history += [asked, {"role": "assistant", "content": text}]
        yield answer


def ask_server(script: Script, model: Path, threads: int, environment: Mapping[str, str]) -> list[Answer]:
    """Run a script on a llama-server of its own, prompt cache on. Raises CannotRun if it fails."""
    with _server(model, threads, environment) as address:
        return list(converse(script, lambda messages: _ask(address, messages, script.n_predict)))


@contextmanager
def _server(model: Path, threads: int, environment: Mapping[str, str]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(find_tool(SERVER)), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads), "-c", str(N_CTX), "-np", "1", "--jinja"]
    process = subprocess.Popen(
        command, env=tool_environment(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(address, process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health") as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.05)
    raise CannotRun(f"{SERVER} did not start within {STARTS_WITHIN_S:.0f} s")


def _ask(address: str, messages: list[dict[str, str]], n_predict: int) -> tuple[Answer, str]:
    body = {"messages": messages, "max_tokens": n_predict, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began_s, first_s, texts = time.perf_counter(), None, []
    timings: dict[str, int] = {}
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            data = line.removeprefix(b"data: ").strip()
            if not data or data == b"[DONE]":
                continue
            chunk = json.loads(data)
            timings = chunk.get("timings") or timings
            text = (chunk["choices"][0]["delta"].get("content") or "") if chunk["choices"] else ""
            if text and first_s is None:
                first_s = time.perf_counter()
            texts.append(text)
    if first_s is None:
        raise CannotRun(f"{SERVER} answered without any text")
    evaluated, cached = timings.get("prompt_n"), timings.get("cache_n")
    whole = evaluated + cached if evaluated is not None and cached is not None else None
    return Answer(first_s - began_s, whole, cached), "".join(texts)
