"""What `llmrun vram` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmrun.app.settings import SettingSources
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES


@dataclass(frozen=True, slots=True)
class Numbers:
    """A model in plain numbers; `quant` by its usual name."""

    layers: int
    kv_heads: int
    head_dim: int
    params: float
    quant: str


@dataclass(frozen=True, slots=True)
class VramRequest:
    """What to estimate: a model by name, or by `numbers`.

    `named`: free bytes of devices, present or not, by name. `exact`: let the engine compute. `verify`: load
    the model as well and compare. `explain`: add the steps to the size of the cache.
    """

    sources: SettingSources
    model: str | None = None
    numbers: Numbers | None = None
    named: tuple[tuple[str, int], ...] = ()
    reserve_bytes: int = DEFAULT_RESERVE_BYTES
    exact: bool = False
    verify: bool = False
    explain: bool = False

    @property
    def cache_dir(self) -> Path:
        """Where headers of models on the Hub are kept."""
        from llmrun.config.dirs import user_cache_dir

        return user_cache_dir(self.sources.env)
