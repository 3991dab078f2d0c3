"""What the native library says before it ends the process.

A failed assertion, memory it did not get, or an RPC server that went away in the middle are faults that the
library cannot tell its caller of: ggml_abort hands a message to a callback and calls abort(3). Nothing can go
on after that, but the process can end in an orderly way. Source: ggml_abort in ggml/src/ggml.c. A GPU's
backend logs the cause of its failure first (`CUDA error: out of memory`) and then gives up with the first
words alone (ggml_cuda_error in ggml/src/ggml-cuda/ggml-cuda.cu).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError

_PLACE = re.compile(r"^(?:.*[/\\])?([^/\\:]+:\d+: )")  # path of a source file where the library was built
_handlers: list[Callable[[LlmrunError], object]] = []


def on_abort(handler: Callable[[LlmrunError], object] | None) -> None:
    """Call `handler` with what the library says, from whatever thread; when it returns, the process ends.

    Without one the message goes to stderr as it is.
    """
    _handlers[:] = [] if handler is None else [handler]


def without_path(message: str) -> str:
    """The message with the name of the source file alone, as the folder is that of a build."""
    return _PLACE.sub(r"\1", message.strip())


def abort_error(message: str, log: Iterable[str] = ()) -> LlmrunError:
    """The library's last words as an error; `log` is what it wrote before."""
    said = without_path(message)
    words = said.rpartition(": ")[2]
    causes = [line.strip() for line in log if line.startswith(f"{words}: ")]
    if words and causes:
        said = said.removesuffix(words) + causes[-1]
    if "mem_buffer != NULL" in said or "out of memory" in said:
        return DoesNotFit(
            f"memory ran out in the engine ({said})",
            "use a smaller -c, a smaller model, or fewer layers on the GPU (-ngl)",
        )
    if "RPC server" in said:
        return EngineFailure(f"the engine lost an RPC server ({said})", "check that the servers still run")
    return EngineFailure(f"the engine gave up ({said})", "-v shows the engine's own log")


def listen_for_abort(
    library: Any, callback_type: Callable[[Callable[[bytes], None]], Any], log: Callable[[], Iterable[str]]
) -> Any:
    """Have the library tell its last words, beside the lines of `log`; what is returned must be kept as long
    as the library."""

    def last_words(message: bytes) -> None:
        if not _handlers:
            os.write(2, message + b"\n")
        for handler in _handlers:
            handler(abort_error(message.decode("utf-8", "replace"), log()))

    callback = callback_type(last_words)
    library.ggml_set_abort_callback(callback)
    return callback
