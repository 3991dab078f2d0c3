"""What a model is called on screen."""

from __future__ import annotations

from llmrun.events import ModelInfo
from llmrun.ui.visible import one_line

_LONGEST = 200


def model_title(model: ModelInfo) -> str:
    """The model's title, made visible."""
    return one_line(model.title)


def model_line(model: ModelInfo) -> str:
    """Its title, then what the file calls itself, and its architecture."""
    title = model_title(model) if model.ref else f"a model in numbers {one_line(model.quant)}"
    return " · ".join(part for part in (title, one_line(model.name), one_line(model.arch)) if part)[:_LONGEST]
