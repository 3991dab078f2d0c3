"""The parent's side of a chat template: start the child, ask it to render, name what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llmrun.errors import TemplateUnusable, UsageError
from llmrun.units import MIB, format_bytes

if TYPE_CHECKING:
    import subprocess

    from llmrun.chat.watchdog import Watchdog

WAY_OUT = "give a working template with --chat-template-file FILE, or use `llmrun run --raw` to go without"
ESCAPED_LINE_ENDS = ("%}\\n", "}}\\n")


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Bounds on one child: `wall_s` for a compilation or a render, `start_s` for the process to come up."""

    wall_s: float = 5.0
    start_s: float = 30.0
    memory_bytes: int = 512 * MIB
    output_chars: int = 16 * MIB


class TemplateRaised(TemplateUnusable):
    """The template called `raise_exception`; `reason` is its own message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'the chat template refuses this conversation: "{reason}"', WAY_OUT)
        self.reason = reason


class TemplateUnsafe(TemplateUnusable):
    """The template reached for something that the sandbox forbids."""


class TemplateRenderer:
    """Renders one template in a child process that lives until `close`; one thread at a time."""

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], limits: TemplateLimits | None = None
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._limits = limits or TemplateLimits()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._compiled = False

    def __enter__(self) -> TemplateRenderer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the child and hand it the template without waiting for it."""
        if self._process is not None:
            return
        import subprocess
        import sys

        from llmrun.chat.watchdog import Watchdog

        child = str(Path(__file__).with_name("template_child.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", child, *_library_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._watchdog = Watchdog(self._process)
        self._compiled = False
        limits = self._limits
        self._send(
            {
                "source": self.source,
                "wall_s": limits.wall_s,
                "memory_bytes": limits.memory_bytes,
                "output_chars": limits.output_chars,
            }
        )

    def check(self) -> None:
        """Wait until the template is compiled. Raises `TemplateUnusable` if it is not valid."""
        if self._compiled:
            return
        with self._ends_child_on_failure():
            self.start()
            self._receive(self._limits.start_s)
            self._receive(self._limits.wall_s)
        self._compiled = True

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text. `extra` adds variables such as enable_thinking.

        Raises `TemplateRaised` when the template itself refuses, `TemplateUnusable` for everything else.
        A child that fails is replaced by a new one at the next call.
        """
        self.check()
        variables = {
            **self._special_tokens,
            "tools": None,
            "documents": None,
            **(extra or {}),
            "messages": list(messages),
            "add_generation_prompt": True,
        }
        with self._ends_child_on_failure():
            self._send({"variables": variables})
            return str(self._receive(self._limits.wall_s)["text"])

    def close(self) -> None:
        """End the child. It holds no state, so it is not asked."""
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        self._compiled = False
        if watchdog is not None:
            watchdog.close()
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        process.wait()

    @contextmanager
    def _ends_child_on_failure(self) -> Iterator[None]:
        """Except for a refusal, which is a regular reply, no reply may be left unread in the pipe."""
        try:
            yield
        except TemplateRaised:
            raise
        except BaseException:
            self.close()
            raise

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process is not None
        stream = _pipe(self._process.stdin)
        line = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        # A child that is gone shows at the next read, with its exit status.
        with suppress(BrokenPipeError):
            stream.write(line + b"\n")
            stream.flush()

    def _receive(self, wall_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._watchdog is not None
        process, watchdog = self._process, self._watchdog
        with watchdog.limit(wall_s):
            line = _pipe(process.stdout).readline(self._limits.output_chars * 6 + 1024)
        if not line.endswith(b"\n"):
            process.kill()
            raise self._gone(process.wait(), watchdog.expired, wall_s)
        reply: dict[str, Any] = json.loads(line.decode("utf-8", "surrogatepass"))
        if "error" in reply:
            raise self._failure(reply)
        return reply

    def _gone(self, status: int, expired: bool, wall_s: float) -> TemplateUnusable:
        import signal

        if expired or status == -getattr(signal, "SIGXCPU", 0):
            return TemplateUnusable(f"the chat template did not finish within {wall_s:g} s", WAY_OUT)
        return TemplateUnusable(f"the process that renders the chat template died (status {status})", WAY_OUT)

    def _failure(self, reply: Mapping[str, Any]) -> TemplateUnusable:
        message, line = str(reply["message"]), reply["line"]
        at_line = f" at line {line}" if line else ""
        match reply["error"]:
            case "raised":
                return TemplateRaised(message)
            case "syntax" if looks_json_escaped(self.source):
                return _json_escaped("the chat template")
            case "syntax":
                text = f"the chat template is invalid{at_line}: {message}"
            case "unsafe":
                return TemplateUnsafe(
                    f"the chat template is unsafe and was stopped{at_line}: {message}", WAY_OUT
                )
            case "memory":
                limit = format_bytes(self._limits.memory_bytes)
                text = f"the chat template wants more than {limit} of memory"
            case "output":
                text = f"the chat template writes more than {self._limits.output_chars:,} characters"
            case _:
                text = f"the chat template fails{at_line}: {message}"
        return TemplateUnusable(text, WAY_OUT)


def load_template_file(path: Path) -> str:
    """Template text from a file. Raises `UsageError` if unreadable, `TemplateUnusable` if it is JSON."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the template file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the template file {path} is not UTF-8 text (byte {error.start})") from error
    if _is_json(source) or looks_json_escaped(source):
        raise _json_escaped(f"the template file {path}")
    return source


def looks_json_escaped(source: str) -> bool:
    """True if the whole text is one line whose line ends were saved as JSON writes them."""
    return "\n" not in source.strip() and any(sign in source for sign in ESCAPED_LINE_ENDS)


def _is_json(source: str) -> bool:
    try:
        return isinstance(json.loads(source), str | dict)
    except ValueError:
        return False


def _json_escaped(what: str) -> TemplateUnusable:
    return TemplateUnusable(
        f'{what} is JSON-escaped (it holds \\n and \\" instead of line ends and quotes)',
        "save the unescaped text and give it with --chat-template-file FILE",
    )


def _library_folders() -> list[str]:
    """Where jinja2 and its one dependency lie, found without importing them."""
    from importlib.util import find_spec

    specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(str(Path(origin).parent.parent) for origin in origins))


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
