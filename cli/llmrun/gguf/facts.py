"""`GgufHeader` -> `ModelFacts`: what the rest of the program wants to know about a model.

Facts describe, they do not judge: a missing or mistyped key becomes 0, an empty text or None, so that even
a file that cannot run can be shown. `check` decides whether it can. Key names are those of the GGUF
specification; where a key is missing the engine's own default holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmrun.gguf.header import GgufHeader
from llmrun.gguf.layers import MAX_LAYERS, SlidingWindow, per_layer, sliding_window
from llmrun.gguf.types import FILE_TYPES, ROW_FALLBACKS

_TEMPLATE = "tokenizer.chat_template"
_SAMPLING = "general.sampling."


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """Part `no` (from 0) of a model stored in `count` files."""

    no: int
    count: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """`label` for people. `declared` is the file's own claim, empty where it makes none; `main_type` the type
    that most weights of the layers really have. The label follows the tensors where the two disagree."""

    label: str
    declared: str
    main_type: str


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The vocabulary's size and the texts a chat template needs; None where the file does not say."""

    model: str
    n_vocab: int
    bos_text: str | None
    eos_text: str | None
    add_bos: bool | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as its header describes it. Sizes are bytes, lengths tokens, head counts one per layer.

    `size_bytes` is the length of the file, or what it must be where only a prefix was read.
    `n_ctx_train` is the context length the model was trained for. `sampling` holds the file's
    `general.sampling.*` recommendations under their short names. `named_templates` are the extra
    templates by name.
    """

    arch: str
    name: str
    kind: str
    licence: str
    quantization: Quantization
    size_bytes: int
    tensor_bytes: int
    n_params: int
    n_layer: int
    n_embd: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    head_size_k: int
    head_size_v: int
    n_ctx_train: int
    window: SlidingWindow
    tokenizer: Tokenizer
    chat_template: str | None
    named_templates: Mapping[str, str]
    sampling: Mapping[str, int | float]
    split: SplitInfo | None

    @property
    def quant(self) -> str:
        """The quantization label, e.g. `Q4_K_M`."""
        return self.quantization.label


def _quantization(header: GgufHeader) -> Quantization:
    counts: Counter[str] = Counter()
    matrices = [t for t in header.tensors if len(t.dims) > 1]
    layers = [t for t in matrices if t.name.startswith("blk.")]
    for tensor in layers or matrices:
        counts[tensor.type.name] += tensor.n_params
    main_type = counts.most_common(1)[0][0] if counts else ""
    file_type = FILE_TYPES.get(header.integer("general.file_type") or 0)
    if file_type is None or header.integer("general.file_type") is None:
        return Quantization(main_type, "", main_type)
    agrees = main_type in ("", file_type.main_type, ROW_FALLBACKS.get(file_type.main_type))
    return Quantization(file_type.label if agrees else main_type, file_type.label, main_type)


def _token_text(header: GgufHeader, key: str) -> str | None:
    tokens, index = header.array("tokenizer.ggml.tokens"), header.integer(key)
    if tokens is None or index is None or not 0 <= index < len(tokens):
        return None
    return str(tokens[index])


def _tokenizer(header: GgufHeader) -> Tokenizer:
    tokens = header.array("tokenizer.ggml.tokens")
    n_vocab = len(tokens) if tokens is not None else header.integer(f"{header.arch}.vocab_size") or 0
    return Tokenizer(
        model=header.text("tokenizer.ggml.model") or "",
        n_vocab=n_vocab,
        bos_text=_token_text(header, "tokenizer.ggml.bos_token_id"),
        eos_text=_token_text(header, "tokenizer.ggml.eos_token_id"),
        add_bos=header.flag("tokenizer.ggml.add_bos_token"),
    )


def _split(header: GgufHeader) -> SplitInfo | None:
    count = header.integer("split.count") or 0
    return SplitInfo(header.integer("split.no") or 0, count) if count > 1 else None


def _licence(header: GgufHeader) -> str:
    licence = header.text("general.license") or ""
    return header.text("general.license.name") or licence if licence in ("", "other") else licence


def _with_prefix(header: GgufHeader, prefix: str) -> dict[str, object]:
    return {key[len(prefix) :]: value for key, value in header.metadata.items() if key.startswith(prefix)}


def _sampling(header: GgufHeader) -> dict[str, int | float]:
    found = _with_prefix(header, _SAMPLING)
    return {k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def model_facts(header: GgufHeader) -> ModelFacts:
    """The facts of a header; never raises."""
    arch = header.arch

    def count(key: str) -> int:
        return max(0, header.integer(f"{arch}.{key}") or 0)

    n_layer = count("block_count")
    listed = n_layer if n_layer <= MAX_LAYERS else 0
    n_embd = count("embedding_length")
    n_head = per_layer(header, f"{arch}.attention.head_count", listed, ())
    head_size = n_embd // n_head[0] if n_head and n_head[0] > 0 else 0
    templates = _with_prefix(header, f"{_TEMPLATE}.")
    return ModelFacts(
        arch=arch,
        name=header.text("general.name") or "",
        kind=header.text("general.type") or "model",
        licence=_licence(header),
        quantization=_quantization(header),
        size_bytes=header.needed_bytes if header.file_bytes is None else header.file_bytes,
        tensor_bytes=sum(t.size_bytes for t in header.tensors),
        n_params=sum(t.n_params for t in header.tensors),
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=per_layer(header, f"{arch}.attention.head_count_kv", listed, n_head),
        head_size_k=count("attention.key_length") or head_size,
        head_size_v=count("attention.value_length") or head_size,
        n_ctx_train=count("context_length"),
        window=sliding_window(header, listed),
        tokenizer=_tokenizer(header),
        chat_template=header.text(_TEMPLATE),
        named_templates=MappingProxyType({k: v for k, v in templates.items() if isinstance(v, str)}),
        sampling=MappingProxyType(_sampling(header)),
        split=_split(header),
    )
