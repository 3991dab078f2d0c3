"""Patterns for tensor names, which the engine reads as C++ regular expressions (ECMAScript's).

Python's are close to them. What the engine has not (lookbehind, flags, named groups, `{,3}`), or what the two
read differently (`\\A`, `\\Z`, `[[:alpha:]]`), is refused, so that a plan and the engine agree on every name.
Source: tensor_buft_overrides in llama.cpp's src/llama-model-loader.cpp, [re.grammar] of the C++ standard.
"""

from __future__ import annotations

import re
import warnings

from llmrun.errors import UsageError
from llmrun.gguf.weights import EXPERTS

_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_OTHER_ESCAPE = re.compile(r"\\[AZNU]")
_OTHER_CLASS = re.compile(r"\[[^\]]*\[[:.=]")
_OTHER_SYNTAX = re.compile(r"\(\?[^:=!]|\{(?!\d)")


def tensor_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled pattern.

    Raises:
        UsageError: no regular expression, or one that the engine would refuse or read differently.
    """
    plain = _ESCAPED.sub("_", pattern)
    escapes = "".join(_ESCAPED.findall(pattern))
    found = (
        _OTHER_ESCAPE.search(escapes)
        or _OTHER_CLASS.search(plain)
        or _OTHER_SYNTAX.search(_CLASS.sub("_", plain))
    )
    if found is not None:
        raise UsageError(
            f"the tensor pattern {pattern!r}: {found[0]!r} is not in the engine's regular expressions",
            "they are ECMAScript's, such as blk\\.[0-9]+\\.ffn_.*",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # of set operations Python may read in a class one day
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the tensor pattern {pattern!r} is no regular expression: {error}") from None


def expert_rules(*, cpu_moe: bool, n_cpu_moe: int, n_layer: int) -> list[tuple[str, str]]:
    """(pattern, device) that keep experts on the CPU: of all layers, or of the first of `n_layer`."""
    if cpu_moe:
        return [(EXPERTS, "CPU")]
    return [(rf"blk\.{il}{EXPERTS}", "CPU") for il in range(min(n_cpu_moe, n_layer))]
