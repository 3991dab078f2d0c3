"""Decides whether a file may be handed to the engine for text generation.

The engine ends the whole process on some contradictions (assertions in llama.cpp) and divides by some of the
numbers. What it is known to assert is therefore checked first, with the file's own numbers in the message:
here what all architectures share, in `check_arch` what holds for some, in `check_vocab` the vocabulary and in
`check_tensors` the tensors. What the engine itself reports as an error (unknown architectures, missing
tensors) is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmrun.errors import NotAModel
from llmrun.gguf.check_arch import contradiction
from llmrun.gguf.check_tensors import tensor_fault
from llmrun.gguf.check_vocab import vocabulary_fault
from llmrun.gguf.facts import ModelFacts, model_facts
from llmrun.gguf.header import GgufHeader, LazyArray
from llmrun.gguf.layers import MAX_LAYERS, per_layer
from llmrun.gguf.reader import incomplete
from llmrun.gguf.text import printable

MAX_EXPERTS = 1024
_U31 = (1 << 31) - 1
_FAULT_LENGTH = 300

_EMBEDDING = "an embedding model"
_NOT_GENERATIVE: dict[str, str] = {
    **dict.fromkeys(
        (
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
        ),
        _EMBEDDING,
    ),
    "t5": "an encoder-decoder model",
    "t5encoder": "a text encoder",
    "clip": "an image or audio projector",
    "wavtokenizer-dec": "an audio decoder",
    "qwen3tts": "a speech model",
    "pockettts": "a speech model",
    "eagle3": "a draft head for another model",
    "dflash": "a draft head for another model",
    "gemma4-assistant": "a draft head for another model",
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "a diffusion model"),
}
_OTHER_TYPES = {
    "mmproj": "an image or audio projector",
    "adapter": "an adapter for another model",
    "imatrix": "an importance matrix",
    "vocab": "a vocabulary",
}
_WITHOUT_ROTATION = frozenset({"glm5-next", "kimi-k3", "kimi-linear"})
_WITHOUT_HEADS = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})


@dataclass(frozen=True, slots=True)
class _Range:
    """Allowed values of `<arch>.<suffix>`; a list holds one for each layer."""

    suffix: str
    low: int
    high: int
    required: bool = False
    layered: bool = False


_RANGES = (
    _Range("block_count", 1, MAX_LAYERS, required=True),
    _Range("embedding_length", 1, 1 << 20, required=True),
    _Range("context_length", 1, _U31, required=True),
    _Range("feed_forward_length", 0, 1 << 24, layered=True),
    _Range("attention.head_count", 0, 1 << 16, layered=True),
    _Range("attention.head_count_kv", 0, 1 << 16, layered=True),
    _Range("attention.key_length", 1, 1 << 16),
    _Range("attention.value_length", 1, 1 << 16),
    _Range("attention.key_length_swa", 1, 1 << 16),
    _Range("attention.value_length_swa", 1, 1 << 16),
    _Range("attention.sliding_window", 0, _U31),
    _Range("rope.dimension_count", 0, 1 << 16),
    _Range("rope.dimension_count_swa", 0, 1 << 16),
    _Range("expert_count", 0, MAX_EXPERTS),
    _Range("expert_used_count", 0, MAX_EXPERTS, layered=True),
    _Range("vocab_size", 0, 1 << 24),
    _Range("ssm.conv_kernel", 0, 1 << 16),
    _Range("ssm.inner_size", 0, 1 << 24),
    _Range("ssm.state_size", 0, 1 << 20),
    _Range("ssm.time_step_rank", 0, 1 << 20),
    _Range("ssm.group_count", 0, 1 << 20),
)
_NUMBERS = (
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "rope.freq_base",
    "rope.scaling.factor",
)
_ROPE_SCALINGS = frozenset({"none", "linear", "yarn", "longrope"})


def _refuse(
    what: str, hint: str = "the file is damaged or was made by a faulty tool; get another copy"
) -> NotAModel:
    return NotAModel(what, hint)


def other_kind(metadata: Mapping[str, object]) -> str | None:
    """What a file of this metadata is where it is no model that generates text; None where it may be one."""
    kind, arch = metadata.get("general.type"), metadata.get("general.architecture")
    if isinstance(kind, str) and kind in _OTHER_TYPES:
        return _OTHER_TYPES[kind]
    return _NOT_GENERATIVE.get(arch) if isinstance(arch, str) else None


def _check_kind(name: str, header: GgufHeader) -> None:
    arch = header.arch
    general_type = header.text("general.type") or "model"
    other = other_kind(header.metadata)
    if other is not None:
        label = general_type if general_type in _OTHER_TYPES else arch
        raise _refuse(
            f"{name} is not a text-generation model: it is {other} ({printable(label, 40)})",
            "give the model's main .gguf file",
        )
    if "general.architecture" in header.metadata and not arch:
        raise _refuse(f"{name} is not a usable model: its general.architecture is not a name")
    if not arch:
        raise _refuse(f"{name} is not a usable model: its header names no architecture")
    if not header.tensors and not (header.integer("split.count") or 0) > 1:
        raise _refuse(
            f"{name} holds no weights ({printable(arch, 40)}): it is a vocabulary or a bare header",
            "give the model's main .gguf file",
        )


def _values(header: GgufHeader, rule: _Range, key: str, n_layer: int) -> list[object]:
    value = header.metadata.get(key)
    if isinstance(value, LazyArray) and rule.layered:
        if len(value) < n_layer:
            raise _Implausible(f"{key} lists {len(value):,} layers of {n_layer:,}")
        return list(value[:n_layer])
    return [value]


class _Implausible(Exception):
    """A value the engine must not see; the text says which."""


def _check_ranges(header: GgufHeader) -> None:
    n_layer = 1
    for rule in _RANGES:
        key = f"{header.arch}.{rule.suffix}"
        if key not in header.metadata:
            if rule.required:
                raise _Implausible(f"{key} is missing")
            continue
        for value in _values(header, rule, key, n_layer):
            if not isinstance(value, int) or isinstance(value, bool):
                raise _Implausible(f"{key} is not a whole number")
            if not rule.low <= value <= rule.high:
                raise _Implausible(f"{key} is {value:,}, plausible are {rule.low:,} to {rule.high:,}")
        if rule.suffix == "block_count":
            n_layer = header.integer(key) or 1


def _check_numbers(header: GgufHeader) -> None:
    for suffix in _NUMBERS:
        key = f"{header.arch}.{suffix}"
        if key not in header.metadata:
            continue
        value = header.number(key)
        if value is None or not math.isfinite(value) or value < 0:
            raise _Implausible(f"{key} is not a finite positive number")
    scaling = header.metadata.get(f"{header.arch}.rope.scaling.type", "linear")
    if scaling not in _ROPE_SCALINGS:
        raise _Implausible(f"{header.arch}.rope.scaling.type is {scaling!r}, which the engine does not know")


def _check_heads(header: GgufHeader, facts: ModelFacts) -> None:
    arch = facts.arch
    if arch in _WITHOUT_HEADS:
        return
    if max(facts.n_head, default=0) < 1:
        raise _Implausible(f"{arch}.attention.head_count is missing or 0")
    has_key_length = f"{arch}.attention.key_length" in header.metadata
    if not has_key_length and facts.n_head[0] and facts.n_embd % facts.n_head[0]:
        raise _Implausible(f"{facts.n_embd:,} columns do not divide among {facts.n_head[0]:,} heads")
    for heads, kv_heads in zip(facts.n_head, facts.n_head_kv, strict=False):
        if heads and kv_heads and heads % kv_heads:
            raise _Implausible(f"{heads:,} heads do not divide among {kv_heads:,} key/value heads")
    _check_rotation(header, facts)


def _check_rotation(header: GgufHeader, facts: ModelFacts) -> None:
    if facts.arch in _WITHOUT_ROTATION:
        return
    largest = max(facts.head_size_k, header.integer(f"{facts.arch}.attention.key_length_swa") or 0)
    for suffix in ("rope.dimension_count", "rope.dimension_count_swa"):
        rotated = header.integer(f"{facts.arch}.{suffix}")
        if rotated is not None and (rotated < 2 or rotated % 2 or (largest and rotated > largest)):
            raise _Implausible(
                f"{facts.arch}.{suffix} is {rotated:,}, not an even number of a head's {largest:,} dimensions"
            )


def _check_experts(header: GgufHeader) -> None:
    arch = header.arch
    layers = header.integer(f"{arch}.block_count") or 0
    experts = header.integer(f"{arch}.expert_count") or 0
    most_used = max(per_layer(header, f"{arch}.expert_used_count", layers, (0,)))
    if most_used > experts or (experts > 0 and most_used < 1):
        raise _Implausible(f"{most_used:,} of {experts:,} experts are used")
    predicting = header.integer(f"{arch}.nextn_predict_layers") or 0
    if not 0 <= predicting < layers:
        raise _Implausible(f"{arch}.nextn_predict_layers is {predicting:,} of {layers:,} layers")


def check_runnable(header: GgufHeader, *, name: str) -> ModelFacts:
    """The facts of a file that may be handed to the engine; `name` stands for it in messages.

    Raises `NotAModel` where it is another kind of file, is shorter than its tensors need, or holds values
    no model can have.
    """
    shown = printable(name)
    _check_kind(shown, header)
    if header.file_bytes is not None and header.file_bytes < header.needed_bytes:
        raise incomplete(name, header.file_bytes, header.needed_bytes)
    facts = model_facts(header)
    try:
        _check_ranges(header)
        _check_numbers(header)
        _check_heads(header, facts)
        _check_experts(header)
        fault = contradiction(header, facts) or vocabulary_fault(header) or tensor_fault(header)
        if fault is not None:
            raise _Implausible(fault)
    except _Implausible as why:
        arch = printable(header.arch, 40)
        raise _refuse(
            f"{shown} is not a usable model ({arch}): {printable(str(why), _FAULT_LENGTH)}"
        ) from None
    return facts


def check_part(header: GgufHeader, *, no: int, count: int, name: str) -> None:
    """Check part `no` (from 0) of a model stored in `count` files.

    Raises `NotAModel` where the file is shorter than its tensors need or belongs somewhere else.
    """
    has_no, has_count = header.integer("split.no"), header.integer("split.count")
    if (has_no, has_count) != (no, count):
        says = "no part of a split model"
        if has_no is not None and has_count is not None:
            says = f"part {has_no + 1:,} of {has_count:,}"
        raise _refuse(
            f"{printable(name)} is named part {no + 1} of {count}, but holds {says}",
            "get all parts of the model from one source, under their own names",
        )
    if header.file_bytes is not None and header.file_bytes < header.needed_bytes:
        raise incomplete(name, header.file_bytes, header.needed_bytes)
    fault = tensor_fault(header)
    if fault is not None:
        raise _refuse(f"{printable(name)} is not usable: {printable(fault, _FAULT_LENGTH)}")
