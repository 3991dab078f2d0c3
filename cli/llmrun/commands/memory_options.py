"""Options of memory that `run`, `chat` and `vram` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from llmrun.app.memory.offload import Budget

_PANEL = "Memory"
DEFAULT_RESERVE = "1GiB"

Device = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--device",
        metavar="NAME=SIZE",
        help="plan with so much free memory on a device; an unknown name adds a GPU, 0 leaves one out",
    ),
]
PresentDevice = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--device",
        metavar="NAME=SIZE",
        help="plan with so much free memory on a device; 0 leaves a GPU out",
        rich_help_panel=_PANEL,
    ),
]
Reserve = Annotated[
    str,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="leave so much of every device free, main memory too; GiB or G, MiB or M are binary, "
        "GB and MB decimal",
    ),
]
PlanReserve = Annotated[
    str,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="what -ngl auto leaves free on every device",
        rich_help_panel=_PANEL,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="load also what memory has no room for", rich_help_panel=_PANEL),
]


def memory_of(device: list[str] | None, reserve: str) -> tuple[tuple[tuple[str, int], ...], int]:
    """Free bytes of the named devices, and the reserve in bytes.

    Raises:
        UsageError: a size or a NAME=SIZE that is none.
    """
    from llmrun.app.memory.size_text import parse_device, parse_size

    return tuple(parse_device(text) for text in device or ()), parse_size(reserve, what="--reserve")


def budget_of(device: list[str] | None, reserve: str, *, force: bool) -> Budget:
    """The memory these options plan a load with; errors as in `memory_of`."""
    from llmrun.app.memory.offload import Budget

    return Budget(*memory_of(device, reserve), force)
