"""What the catalogue knows, and which of its models suits this machine, for a user who has none yet.

A guess from two figures, the parameters and the mean bits a weight of the quantization (`memory/quants.py`);
`llmrun vram NAME` reads the file's header and knows better.
"""

from __future__ import annotations

from llmrun.errors import LlmrunError
from llmrun.memory.quants import QUANT_BITS
from llmrun.reports.library import KnownModel
from llmrun.store.catalogue import Catalogue, CatalogueModel, load_catalogue
from llmrun.store.local import find_local
from llmrun.units import GIB, format_bytes

MOST_ACTIVE_PARAMETERS = 15_000_000_000
"""A token reads all active weights once: more of them than this, 9 GB at 4.9 bits, and main memory is too
slow for an answer to be read as it comes."""

_MXFP4_BITS = 17 * 8 / 32
"""17 bytes for 32 weights (llama.cpp, ggml-common.h: block_mxfp4). Makers train in it; no model is converted
to it, so it is not among the quantizations to choose from."""


def known_models() -> tuple[KnownModel, ...]:
    """The catalogue, the user's entries among it. Raises `UsageError` for a mistake in it."""
    return tuple(map(_known, load_catalogue().values()))


def _known(model: CatalogueModel) -> KnownModel:
    packaged = model.files.get(model.default)
    return KnownModel(
        name=model.name,
        title=model.title,
        purpose=model.purpose,
        licence=model.licence,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        context=model.context,
        quant=model.default,
        source=packaged.distribution if packaged else model.hub,
        about_bytes=packaged.size_bytes if packaged else weights_bytes(model),
    )


def weights_bytes(model: CatalogueModel) -> int | None:
    """About what the model's default quantization weighs; None where the catalogue does not tell enough."""
    bits = (QUANT_BITS | {"MXFP4": _MXFP4_BITS}).get(model.default.upper())
    return int(model.parameters * bits / 8) if model.parameters and bits else None


def best_fit(catalogue: Catalogue, free_bytes: int) -> CatalogueModel | None:
    """The largest model that should run well in `free_bytes`; None if none of the Hub's does.

    A tenth of the weights and 1 GiB are left for the context and the engine's buffers.
    """
    fitting = [
        (model.parameters or 0, model)
        for model in catalogue.values()
        if model.hub
        and (size := weights_bytes(model)) is not None
        and size * 1.1 + GIB <= free_bytes
        and (model.active_parameters or model.parameters or 0) <= MOST_ACTIVE_PARAMETERS
    ]
    return max(fitting, key=lambda entry: entry[0], default=(0, None))[1]


def suggestion(catalogue: Catalogue, free_bytes: int) -> str | None:
    """One line that names the best model for this machine and how to have it; None if there is none."""
    model = best_fit(catalogue, free_bytes)
    if model is None:
        return None
    try:
        find_local(model.hub, pull=model.name, default=model.default)
        command = "chat"
    except LlmrunError:
        command = "pull"
    return (
        f"{model.title} should fit the {format_bytes(free_bytes)} free here "
        f"(about {format_bytes(weights_bytes(model) or 0)}): llmrun {command} {model.name}"
    )
