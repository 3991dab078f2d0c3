"""Vocabularies on which the engine's process would end, and those beside them that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmrun.gguf.check import check_runnable
from llmrun.gguf.check_vocab import vocabulary_fault
from llmrun.gguf.reader import read_header

from tests.support.archs import hyper, write_arch
from tests.support.fates import RAN, fates
from tests.support.gguf_writer import Value, ValueType, array_of

MERGES = array_of(ValueType.STRING, ["t 1"])
N_TOKENS = hyper("llama").n_vocab

Keys = Mapping[str, Value | None]


@dataclass(frozen=True)
class Pair:
    """Keys of a vocabulary that kills the engine's process, and those of one it takes."""

    broken: Keys
    named: str
    sound: Keys = field(default_factory=dict)


BPE: Keys = {"model": "gpt2", "merges": MERGES}
NO_BYTES = array_of(ValueType.I32, [1] * N_TOKENS)
PAIRS: dict[str, Pair] = {
    "bpe that has no BOS": Pair(
        {**BPE, "pre": "glm4", "add_bos_token": True, "bos_token_id": None},
        "bos_token_id is missing",
        {**BPE, "pre": "glm4", "add_bos_token": False, "bos_token_id": None},
    ),
    "bpe with a BOS beyond the end": Pair(
        {**BPE, "pre": "chatglm-bpe", "add_bos_token": True, "bos_token_id": N_TOKENS},
        f"bos_token_id is {N_TOKENS}",
        {**BPE, "pre": "chatglm-bpe", "add_bos_token": True, "bos_token_id": N_TOKENS - 1},
    ),
    "unigram without BOS": Pair(
        {"model": "t5", "add_bos_token": True, "bos_token_id": None},
        "bos_token_id is missing",
        {"model": "t5", "add_bos_token": None, "bos_token_id": None},
    ),
    "gemma4 without BOS": Pair(
        {"model": "gemma4", "merges": MERGES, "add_bos_token": False, "bos_token_id": None},
        "bos_token_id is missing",
        {"model": "gemma4", "merges": MERGES, "add_bos_token": False, "bos_token_id": 1},
    ),
    "gemma4 without EOS": Pair(
        {"model": "gemma4", "merges": MERGES, "add_eos_token": True, "eos_token_id": None},
        "eos_token_id is missing",
        {"model": "gemma4", "merges": MERGES, "add_eos_token": True, "eos_token_id": 2},
    ),
    "word pieces and bytes": Pair({"model": "bert"}, "token_type", {"model": "bert", "token_type": NO_BYTES}),
}
# Ids the engine knows itself, and ids nobody asks for.
TAKEN: dict[str, Keys] = {
    "sentence pieces, no ids": {"bos_token_id": None, "eos_token_id": None, "add_eos_token": True},
    "sentence pieces, ids beyond the end": {"bos_token_id": 2**32 - 1, "eos_token_id": 5000},
    "bpe, no ids": {**BPE, "pre": "qwen2", "bos_token_id": None, "eos_token_id": None, "add_eos_token": True},
    "unigram, no EOS": {"model": "t5", "eos_token_id": None, "add_eos_token": True},
}


def write(path: Path, keys: Keys) -> Path:
    full = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return write_arch(path, "llama", vocabulary=True, keys=full)


def fault(path: Path) -> str | None:
    return vocabulary_fault(read_header(path))


@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_is_named_and_its_neighbour_passes(tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    told = fault(write(tmp_path / "broken.gguf", pair.broken))
    assert told is not None
    assert f"tokenizer.ggml.{pair.named}" in told
    check_runnable(read_header(write(tmp_path / "sound.gguf", pair.sound)), name="m.gguf")


@pytest.mark.parametrize("name", TAKEN)
def test_the_engine_has_ids_of_its_own(tmp_path: Path, name: str) -> None:
    assert fault(write(tmp_path / "m.gguf", TAKEN[name])) is None


@pytest.mark.parametrize(("n_tokens", "is_fault"), [(1, True), (2, False), (102, True), (103, False)])
def test_ids_of_the_engine_must_exist_too(tmp_path: Path, n_tokens: int, is_fault: bool) -> None:
    """A sentence piece vocabulary needs 1 for its BOS, one of word pieces 102 for its separator."""
    tokens = array_of(ValueType.STRING, [f"t{i}" for i in range(n_tokens)])
    keys: dict[str, Value | None] = {"tokens": tokens, "bos_token_id": None, "add_bos_token": True}
    if n_tokens > 100:
        keys |= {"model": "bert", "token_type": NO_BYTES}
    assert (fault(write(tmp_path / "m.gguf", keys)) is not None) == is_fault


ALL_BYTES = [f"\\x{byte:02x}" for byte in range(256)]


@pytest.mark.parametrize(
    ("texts", "byte"),
    [
        (["a", "ab", "\\n", "\\n\\n"], None),
        (["ab", "b", "\\n"], 0x61),
        (["a", "\\n\\n"], 0x0A),
        (["a", "\\t\\n"], 0x09),
        (["a", "\\\\\\\\"], 0x5C),
        (["a", "\\xc3\\xa9"], 0xC3),
        (["a", "é"], 0xC3),
        (["\\x61", "ab"], None),
        (["a", "", "\\", "\\x4"], None),
        ([*ALL_BYTES, "whole", "é"], None),
    ],
)
def test_rwkv_tokens_begin_with_tokens(tmp_path: Path, texts: list[str], byte: int | None) -> None:
    """Else the tokenizer may never end: on "\\n" within the load already."""
    tokens = array_of(ValueType.STRING, texts)
    told = fault(write(tmp_path / "m.gguf", {"model": "rwkv", "tokens": tokens, "add_bos_token": False}))
    assert told is None if byte is None else f"0x{byte:02X}" in (told or "")


@pytest.mark.slow
def test_the_engine_agrees(tmp_path: Path) -> None:
    """It ends its process on what is refused, and reads a text with what is not."""
    broken = [write(tmp_path / f"{name}!.gguf", pair.broken) for name, pair in PAIRS.items()]
    sound = [write(tmp_path / f"{name}.gguf", pair.sound) for name, pair in PAIRS.items()]
    sound += [write(tmp_path / f"{name}.gguf", keys) for name, keys in TAKEN.items()]
    assert [p.name for p, fate in zip(broken, fates(broken), strict=True) if fate >= 0] == []
    assert [p.name for p, fate in zip(sound, fates(sound), strict=True) if fate != RAN] == []
