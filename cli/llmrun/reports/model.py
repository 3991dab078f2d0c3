"""What `llmrun show` knows about a model file, as values: made by `app`, shown by `ui`.

Everything comes from the header of the file, so it is a description, never a measurement. Texts are as the
file has them; whoever shows them makes them safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmrun.events import ModelInfo, RemoteModel

TemplateStatus = Literal["valid", "none", "invalid", "unsafe", "fails", "unchecked"]


@dataclass(frozen=True, slots=True)
class FilePart:
    """One file of the model: the length it has, and the length its tensors need."""

    path: str
    size_bytes: int
    needed_bytes: int

    @property
    def complete(self) -> bool:
        """False where the file ends before its tensors do."""
        return self.size_bytes >= self.needed_bytes


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor: its name, dimensions (fastest first), type and bytes."""

    name: str
    dims: tuple[int, ...]
    type: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorTypeUse:
    """How many tensors have one type, and what they hold."""

    type: str
    count: int
    n_params: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """A metadata array: type of its items, their number, and the first few."""

    type: str
    length: int
    first: tuple[bool | int | float | str, ...]


MetadataValue = bool | int | float | str | ArraySummary


@dataclass(frozen=True, slots=True)
class WindowReport:
    """A sliding window of `n_swa` tokens; `layers` says of each layer whether it has it."""

    n_swa: int
    chunked: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ExpertReport:
    """A mixture of experts: how many, how many a token uses (per layer), how many all tokens share."""

    count: int
    used: tuple[int, ...]
    shared: int


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """The chat template. `reason` says what is wrong with it; `named` are the names of further ones.

    "invalid" does not compile, "unsafe" reaches for what the sandbox forbids, "fails" breaks on a plain
    conversation of one message, "unchecked" was not tried.
    """

    status: TemplateStatus
    reason: str
    text: str | None
    named: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """The tokenizer's kind, the number of tokens, and the special texts (None where the file has none)."""

    model: str
    n_vocab: int
    bos_text: str | None
    eos_text: str | None
    add_bos: bool | None


@dataclass(frozen=True, slots=True)
class AttentionReport:
    """The shape of the attention layers: heads one per layer (empty where the file does not say).

    `kv_bytes_per_token` is what one more position takes at f16 in the layers that see the whole context; None
    where that cannot be told. `kv_note` then says why, else what windows and states hold beside it.
    """

    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    head_size_k: int
    head_size_v: int
    window: WindowReport | None
    kv_bytes_per_token: int | None
    kv_note: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model as its file describes it; counts are 0 and texts empty where the file does not say.

    `kind`: what the file says it is, "model" for most; what its architecture is good for, such as "embedding
    model", where that is not text. `problem` says why it cannot generate text, empty where nothing is against
    it. `declared_quant` is the file's own quantization label; `model.quant` follows the tensors. `part` is
    (number from 1, count) where the file is one part of a model of which no other part was read. `remote`:
    the model is not on this machine.
    """

    model: ModelInfo
    kind: str
    problem: str
    version: int
    parts: tuple[FilePart, ...]
    part: tuple[int, int] | None
    n_params: int
    n_layer: int
    n_embd: int
    n_ctx_train: int
    attention: AttentionReport
    experts: ExpertReport | None
    vocabulary: VocabularyReport
    declared_quant: str
    tensor_types: tuple[TensorTypeUse, ...]
    template: TemplateReport
    licence: str
    licence_link: str
    sampling: Mapping[str, int | float]
    catalogue_sampling: Mapping[str, object]
    languages: ArraySummary | None
    tags: ArraySummary | None
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorRow, ...]
    remote: RemoteModel | None = None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(use.size_bytes for use in self.tensor_types)

    @property
    def bits_per_weight(self) -> float | None:
        """Mean storage of one weight; None where there are no tensors."""
        return self.tensor_bytes * 8 / self.n_params if self.n_params else None

    @property
    def quant_agrees(self) -> bool:
        """False where the file's own label does not match its tensors."""
        return self.declared_quant in ("", self.model.quant)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the file, a sentence each."""
        found = []
        for part in self.parts:
            if not part.complete:
                has, needs = f"{part.size_bytes:,}", f"{part.needed_bytes:,}"
                which = "file" if len(self.parts) == 1 else part.path
                found.append(f"{which} is incomplete: has {has} bytes, needs {needs}")
        return (*found, self.problem) if self.problem else tuple(found)
