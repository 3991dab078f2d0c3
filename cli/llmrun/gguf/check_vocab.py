"""Vocabularies the engine cannot read or write text with.

llama.cpp asserts that tokens and their texts map one to one and that the tokens it puts around a text exist
(llama_vocab::impl::load and ::tokenize in src/llama-vocab.cpp). An id outside the vocabulary counts there as
not given, and each tokenizer has ids of its own for what the file does not give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmrun.gguf.header import GgufHeader, LazyArray
from llmrun.gguf.text import printable
from llmrun.gguf.types import ValueType

_WITHOUT_VOCABULARY = frozenset({"no_vocab", "none"})
_ARRAYS = (
    ("tokenizer.ggml.scores", frozenset({ValueType.F32, ValueType.I32})),
    ("tokenizer.ggml.token_type", frozenset({ValueType.I32, ValueType.U32})),
)
_BYTE_TOKEN = 6
_RWKV_BYTE = re.compile(rb"\\x(..)|\\([^x])|([^\\])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """Ids the engine takes where the file gives none, and whether it adds BOS and EOS unasked."""

    bos: int | None = None
    eos: int | None = None
    sep: int | None = None
    always_bos: bool = False
    always_sep: bool = False


_TOKENIZERS = {
    "llama": _Tokenizer(bos=1, eos=2),
    "gpt2": _Tokenizer(bos=11, eos=11),
    "hybriddna": _Tokenizer(bos=11, eos=11),
    "whitespace": _Tokenizer(bos=11, eos=11),
    "t5": _Tokenizer(eos=1),
    "bert": _Tokenizer(bos=101, sep=102, always_bos=True, always_sep=True),
    "gemma4": _Tokenizer(always_bos=True),
}
_WITHOUT_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})  # values of tokenizer.ggml.pre


def _missing_id(header: GgufHeader, model: str, n_tokens: int) -> str | None:
    tokenizer = _TOKENIZERS.get(model)
    if tokenizer is None:
        return None
    bos = None if header.text("tokenizer.ggml.pre") in _WITHOUT_BOS else tokenizer.bos
    flags = {name: header.flag(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos")}
    wanted = (
        ("bos_token_id", bos, flags["bos"] or tokenizer.always_bos),
        ("eos_token_id", tokenizer.eos, flags["eos"] and not tokenizer.always_sep),
        ("seperator_token_id", tokenizer.sep, tokenizer.always_sep),
    )
    for name, default, is_added in wanted:
        key = f"tokenizer.ggml.{name}"
        given = header.integer(key)
        if is_added and not any(i is not None and 0 <= i < n_tokens for i in (given, default)):
            says = "is missing" if given is None else f"is {given:,}"
            return f"{key} {says}, but the engine adds that token to texts, of {n_tokens:,} tokens"
    return None


def _endless_byte(tokens: LazyArray) -> int | None:
    """A byte that an RWKV vocabulary has tokens begin with, but which is no token itself, if there is one.

    Where a text goes on with that byte and no token matches, the tokenizer starts over and never ends, for
    "\\n" already while the engine loads the file (llm_tokenizer_rwkv_session::tokenize). RWKV's own
    vocabularies begin with all bytes, and are read no further.
    """
    alone: set[int] = set()
    first: set[int] = set()
    for token in tokens:
        raw = str(token).encode()
        found = _RWKV_BYTE.match(raw)
        if found is None:
            continue
        byte = _rwkv_byte(found)
        first.add(byte)
        if found.end() == len(raw):
            alone.add(byte)
            if len(alone) == 256:
                return None
    return min(first - alone, default=None)


def _rwkv_byte(found: re.Match[bytes]) -> int:
    """The byte that the start of a token stands for, as llama_unescape_rwkv_token reads it."""
    code, escaped, plain = found.groups()
    if code is not None:
        high, low = (digit - (ord("a") - 10 if digit >= ord("a") else ord("0")) for digit in code)
        return ((high << 4) + low) & 0xFF
    return {b"t": 9, b"n": 10, b"r": 13}.get(escaped, ord(escaped or plain))


def vocabulary_fault(header: GgufHeader) -> str | None:
    """What is wrong with the vocabulary, in words; None where the engine can use it."""
    model = header.text("tokenizer.ggml.model")
    if model in _WITHOUT_VOCABULARY:
        return "it has no vocabulary, so it cannot read or write text"
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, LazyArray) or tokens.item_type is not ValueType.STRING or not len(tokens):
        return "tokenizer.ggml.tokens is not a list of texts"
    repeated = tokens.repeated_text()
    if repeated is not None:
        return f"the token {printable(repeated, 40)!r} occurs twice in its vocabulary"
    for key, types in _ARRAYS:
        array = header.metadata.get(key)
        if array is None:
            continue
        if not isinstance(array, LazyArray) or array.item_type not in types:
            return f"{key} is not a list of numbers"
        if len(array) < len(tokens):
            return f"{key} has {len(array):,} entries for {len(tokens):,} tokens"
    merges = header.metadata.get("tokenizer.ggml.merges")
    if merges is not None and not (isinstance(merges, LazyArray) and merges.item_type is ValueType.STRING):
        return "tokenizer.ggml.merges is not a list of texts"
    types_of = header.array("tokenizer.ggml.token_type")
    if model == "bert" and types_of is not None and _BYTE_TOKEN in types_of[: len(tokens)]:
        return f"tokenizer.ggml.token_type marks bytes ({_BYTE_TOKEN}), which a bert tokenizer has not"
    endless = _endless_byte(tokens) if model == "rwkv" else None
    if endless is not None:
        return f"tokens begin with the byte 0x{endless:02X}, which is no token, so some texts cannot be split"
    return _missing_id(header, model or "", len(tokens))
