"""The small byte vocabulary shared by the fixture models.

A SentencePiece-style vocabulary: `<unk>`, `<s>`, `</s>`, 256 byte tokens (so that every text can be
tokenised), then the tokens of the model. Token types are those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tests.support.gguf_writer import Value, ValueType, array_of

UNK, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3


class TokenType(IntEnum):
    """Kinds of vocabulary entries."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


Token = tuple[str, TokenType]

BASE: tuple[Token, ...] = (
    ("<unk>", TokenType.UNKNOWN),
    ("<s>", TokenType.CONTROL),
    ("</s>", TokenType.CONTROL),
    *((f"<0x{i:02X}>", TokenType.BYTE) for i in range(256)),
)


def piece(text: str) -> str:
    """Spelling of a normal token: blanks are written as U+2581."""
    return text.replace(" ", "\u2581")


def metadata(tokens: Sequence[Token], *, eos: bool = True, add_bos: bool = True) -> list[tuple[str, Value]]:
    """The tokenizer keys for `tokens`."""
    keys: list[tuple[str, Value]] = [
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.tokens", array_of(ValueType.STRING, [text for text, _ in tokens])),
        ("tokenizer.ggml.scores", array_of(ValueType.F32, [0.0] * len(tokens))),
        ("tokenizer.ggml.token_type", array_of(ValueType.I32, [int(kind) for _, kind in tokens])),
        ("tokenizer.ggml.bos_token_id", BOS),
        ("tokenizer.ggml.unknown_token_id", UNK),
        ("tokenizer.ggml.add_bos_token", add_bos),
        ("tokenizer.ggml.add_space_prefix", False),
    ]
    if eos:
        keys.append(("tokenizer.ggml.eos_token_id", EOS))
    return keys
