"""Child process that renders one chat template: JSON lines in, JSON lines out.

Chat templates are programs that come with a downloaded file. Jinja's sandbox keeps them from Python's
objects, but nothing inside a process can stop nested loops or a doubling string, so they run here, under
limits of the operating system, and the parent ends the process when its time is up. Run by path with
`python -I -S`: it imports the standard library and jinja2, whose folders come as arguments. The helpers are
those that Hugging Face's `apply_chat_template` offers, since templates are written against it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import jinja2

T = TypeVar("T")
MESSAGE_CHARS = 400
# What Jinja and the codecs import on first use, when no file can be opened any more.
LATE_IMPORTS = ("encodings.unicode_escape", "jinja2.constants", "jinja2.debug", "pprint", "textwrap")
TEMPLATE_NAME = "<template>"


class OutputTooLong(Exception):
    """The rendered text passed the limit."""


def main() -> None:
    """Serve renders until stdin ends."""
    import signal

    # Ctrl-C goes to the whole foreground group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.extend(sys.argv[1:])
    build_template = template_builder()
    for name in LATE_IMPORTS:
        import_module(name)
    setup = read_line()
    if setup is None:
        return
    limit_cpu = limit_process(setup["memory_bytes"])
    write_line({"ready": True})
    limit_cpu(setup["wall_s"])
    reply, template = attempt(partial(build_template, setup["source"]))
    write_line(reply)
    while template is not None and (request := read_line()) is not None:
        limit_cpu(setup["wall_s"])
        reply, text = attempt(partial(render, template, request["variables"], setup["output_chars"]))
        write_line(reply if text is None else {"text": text})


def read_line() -> dict[str, Any] | None:
    """The next request, None at the end of input."""
    line = sys.stdin.buffer.readline()
    return json.loads(line.decode("utf-8", "surrogatepass")) if line else None


def write_line(reply: dict[str, Any]) -> None:
    """Send one reply."""
    line = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def limit_process(memory_bytes: int) -> Callable[[float], None]:
    """Take away memory, files, child processes and core dumps; returns what grants seconds of CPU time.

    Where the system has no such limits (Windows), only the parent's clock remains.
    """
    try:
        import resource
    except ImportError:
        return lambda _: None
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 3,
        resource.RLIMIT_NPROC: 0,
    }
    for name, value in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(name, (value, value))

    def grant(cpu_s: float) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + cpu_s) + 2
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))

    return grant


def template_builder() -> Callable[[str], jinja2.Template]:
    """Import jinja2 and return what compiles a template source."""
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            raise SecurityError(f"access to '{attribute}' of a '{type(obj).__name__}' object")

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks answers for training; here it only passes its body through."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=lineno)

    def raise_exception(message: object) -> NoReturn:
        raise jinja2.TemplateError(str(message))

    extensions = [Generation, jinja2.ext.loopcontrols]
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(pattern: str) -> str:
    """Local date and time in `strftime` form."""
    return datetime.now().strftime(pattern)


def render(template: jinja2.Template, variables: dict[str, Any], output_chars: int) -> str:
    """The text, piece by piece so that its length can be checked on the way."""
    pieces = []
    length = 0
    for piece in template.generate(variables):
        length += len(piece)
        if length > output_chars:
            raise OutputTooLong
        pieces.append(piece)
    return "".join(pieces)


def attempt(work: Callable[[], T]) -> tuple[dict[str, Any], T | None]:
    """Run template code: an empty reply and the result, or what went wrong and None."""
    try:
        return {}, work()
    except Exception as error:  # noqa: BLE001 - a template may raise anything, and gets told so
        return failure(error), None


def failure(error: Exception) -> dict[str, Any]:
    """A template's exception as a reply: kind, message, line."""
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

    line = template_line(error)
    kind, message = "failed", f"{type(error).__name__}: {error}"
    match error:
        case MemoryError():
            kind, message = "memory", ""
        case OutputTooLong():
            kind, message = "output", ""
        case SecurityError():
            kind, message = "unsafe", str(error)
        case TemplateSyntaxError():
            kind, message, line = "syntax", str(error.message), error.lineno
        case UndefinedError():
            message = str(error)
        case TemplateError():
            kind, message = "raised", str(error)
    return {"error": kind, "message": " ".join(message.split())[:MESSAGE_CHARS], "line": line}


def template_line(error: Exception) -> int | None:
    """Line of the template that `error` came from, by Jinja's rewritten traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TEMPLATE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


if __name__ == "__main__":
    main()
