"""`llmrun vram`: the memory a model will take, and what fits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from llmrun.commands.memory_options import DEFAULT_RESERVE, Device, Reserve, memory_of
from llmrun.commands.options import takes_settings
from llmrun.commands.shared_options import Profile
from llmrun.config.schema import SETTINGS
from llmrun.errors import DoesNotFit, UsageError

if TYPE_CHECKING:
    from llmrun.app.memory.vram_request import Numbers

_OF_MEMORY = {
    "n_batch", "n_ubatch", "n_gpu_layers", "offload_kqv", "flash_attn", "use_mmap", "n_ctx", "n_parallel",
    "kv_unified", "type_k", "type_v", "swa_full", "tensor_split", "main_gpu", "cpu_moe", "n_cpu_moe",
    "override_tensor", "rpc", "strict_offload",
}  # fmt: skip
_WITHOUT = [setting.name for setting in SETTINGS if setting.name not in _OF_MEMORY]
_NUMBERS = "Plain numbers instead of MODEL"
_DEFAULT_QUANT = "Q4_K_M"

Layers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--layers", metavar="N", help="layers", rich_help_panel=_NUMBERS),
]
KvHeads = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--kv-heads", metavar="N", help="KV heads of each layer", rich_help_panel=_NUMBERS),
]
HeadDim = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--head-dim", metavar="N", help="numbers in a head", rich_help_panel=_NUMBERS),
]
Params = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--params", metavar="N", help="parameters, such as 8e9", rich_help_panel=_NUMBERS),
]
Quant = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--quant", metavar="NAME", help=f"quantization ({_DEFAULT_QUANT})", rich_help_panel=_NUMBERS
    ),
]


@takes_settings(without=_WITHOUT)
def vram(
    *,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="MODEL", help="path to a .gguf file, user/repo:QUANT, or a catalogue name"),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="let the engine compute the sizes, without reading any weights")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="load the model and show what was predicted and what was taken")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="the size of the KV cache step by step, in words")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="exit with status 5 when it does not fit")] = False,
    device: Device = None,
    reserve: Reserve = DEFAULT_RESERVE,
    layers: Layers = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    params: Params = None,
    quant: Quant = None,
    profile: Profile = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    flags: dict[str, object],
) -> None:
    """Show how much memory a model will take on each device, and what fits.

    Nothing is loaded: the sizes follow from the file's header, or from a few plain numbers.
    """
    from llmrun.app.memory.vram import vram_report
    from llmrun.app.memory.vram_request import VramRequest
    from llmrun.app.settings import SettingSources
    from llmrun.commands.waiting import shown
    from llmrun.documents.models import vram_document
    from llmrun.documents.requests import dump
    from llmrun.ui.streams import Streams
    from llmrun.ui.vram_view import print_vram, print_vram_warnings

    named, reserve_bytes = memory_of(device, reserve)
    request = VramRequest(
        SettingSources(flags, profile, os.environ),
        model,
        _numbers(layers, kv_heads, head_dim, params, quant),
        named=named,
        reserve_bytes=reserve_bytes,
        exact=exact,
        verify=verify,
        explain=explain,
    )
    streams = Streams.of_process()
    report = shown(vram_report(request), streams)
    print_vram_warnings(streams, report)
    if json:
        streams.write_text(dump(vram_document(report)))
    else:
        print_vram(streams, report)
    if check and not report.fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _numbers(
    layers: int | None, kv_heads: int | None, head_dim: int | None, params: float | None, quant: str | None
) -> Numbers | None:
    """The model they describe; None where none is given."""
    from llmrun.app.memory.vram_request import Numbers

    given = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim, "--params": params}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        if quant is not None:
            raise UsageError("--quant describes a model in plain numbers", f"give {', '.join(given)} as well")
        return None
    if missing:
        raise UsageError(
            f"plain numbers lack {', '.join(missing)}", f"give all of {', '.join(given)}, or a MODEL"
        )
    assert layers is not None
    assert kv_heads is not None
    assert head_dim is not None
    assert params is not None
    return Numbers(layers, kv_heads, head_dim, params, quant or _DEFAULT_QUANT)
