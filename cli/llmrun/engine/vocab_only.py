"""A model's tokenizer without its weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmrun.engine.api import ModelParams
from llmrun.engine.model import Model
from llmrun.engine.vocab import Vocab


@contextmanager
def open_vocab(path: Path) -> Iterator[Vocab]:
    """The vocabulary of a model file, as long as the context lasts; only the header is read.

    Raises:
        NotAModel: the library refuses the file.
    """
    model = Model(
        ModelParams(str(path), gpu_layers=0),
        extra_bufts=False,
        progress=lambda _: None,
        cancelled=threading.Event(),
        dry=True,
    )
    try:
        yield model.vocab
    finally:
        model.close()
