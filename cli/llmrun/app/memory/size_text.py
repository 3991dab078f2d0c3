"""Sizes of memory as people type them."""

from __future__ import annotations

import re

from llmrun.errors import UsageError
from llmrun.units import GIB, KIB, MIB, TIB

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_BINARY = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = {"": 1, "b": 1} | _BINARY | {f"{unit}ib": size for unit, size in _BINARY.items()} | _DECIMAL
_MOST_BYTES = 1 << 60


def parse_size(text: str, *, what: str) -> int:
    """Bytes of `24GiB`, `24G` (both binary), `24GB` (powers of 1000) or a bare number of bytes.

    Letter case does not matter. `what` names the option in the error.

    Raises:
        UsageError: it is no size, or beyond any machine's memory.
    """
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{what}: {text!r} is not a size", "write it like 24GiB, 512MiB or 1.5G; 0 is none")
    size = float(found[1]) * unit
    if size > _MOST_BYTES:
        raise UsageError(f"{what}: {text} is more than any machine has", "write it like 24GiB or 512MiB")
    return int(size)


def parse_device(text: str) -> tuple[str, int]:
    """Name and bytes of `NAME=SIZE`.

    Raises:
        UsageError: a part is missing, or the size is none.
    """
    name, equals, size = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f"--device: {text!r} is not NAME=SIZE", "write it like --device CUDA0=24GiB")
    return name, parse_size(size, what=f"--device {name}")
