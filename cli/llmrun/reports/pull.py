"""What a repository offers, and what was fetched of it, as values: made by `app`, shown by `ui`.

Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrun.reports.download import Verified

Where = Literal["gpu", "part", "cpu", "none"]


@dataclass(frozen=True, slots=True)
class QuantOffer:
    """One quantization of a repository.

    `size_bytes` is what the Hub lists, of which `here_bytes` are on this machine already. `bits` are mean
    bits a weight, `sum_bytes` all memory it takes with the chosen context, `where` it fits: wholly or partly
    on the GPUs, in main memory, nowhere. They are 0 and None where the model was not looked at.
    """

    quant: str
    size_bytes: int
    n_files: int
    here_bytes: int = 0
    bits: float = 0.0
    sum_bytes: int = 0
    where: Where | None = None

    @property
    def here(self) -> bool:
        """True where all of it is on this machine."""
        return self.here_bytes >= self.size_bytes


@dataclass(frozen=True, slots=True)
class Offers:
    """The quantizations in a repository at one commit, in the order of their sizes; `marked` is the index of
    the one that suits this machine best, None where none fits.

    `title` is the model's own name; `kind` says what it is where it generates no text, else empty. K/V is the
    same for all: `kv_bytes` with `n_ctx` tokens of these types. `received_bytes` came from the Hub for this.
    """

    ref: str
    repo: str
    commit: str
    title: str
    kind: str
    n_params: int
    n_ctx: int
    type_k: str
    type_v: str
    kv_bytes: int
    quants: tuple[QuantOffer, ...]
    marked: int | None
    received_bytes: int


@dataclass(frozen=True, slots=True)
class PulledFile:
    """A file that is in the cache now. `received_bytes` is 0 where it was there before."""

    path: str
    file: Path
    size_bytes: int
    sha256: str
    received_bytes: int
    verified: Verified


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is on this machine now. `name` is how to call it, `kind` what it is where it generates no
    text, else empty. `repo` and `commit` are empty for one that comes in a Python package.
    """

    ref: str
    name: str
    repo: str
    commit: str
    quant: str
    files: tuple[PulledFile, ...]
    kind: str = ""

    @property
    def size_bytes(self) -> int:
        """All files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def received_bytes(self) -> int:
        """What came over the network for them."""
        return sum(file.received_bytes for file in self.files)
