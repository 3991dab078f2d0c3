"""A model's vocabulary: text to token ids and single tokens back to bytes."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from llmrun.engine.bindings import library
from llmrun.engine.inexpressible import Gaps, find_gaps
from llmrun.errors import EngineFailure, UsageError

_PIECE_BYTES = 64
_SENTENCE_PIECES, _BYTE_PAIRS = 1, 2  # llama_vocab_type


def _inexpressible(what: str) -> UsageError:
    return UsageError(
        f"the model's vocabulary has no token for {what}, nor for its bytes",
        "leave it out, or use a model whose vocabulary is complete",
    )


class Vocab:
    """Read-only view on a loaded model's vocabulary; valid as long as the model is open."""

    def __init__(self, model: Any) -> None:
        lib = library()
        self._lib = lib
        self._model = model
        self._vocab = lib.llama_model_get_vocab(model)
        self._type: int = lib.llama_vocab_type(self._vocab)
        self._pieces: dict[int, bytes] = {}
        self.n_tokens: int = lib.llama_vocab_n_tokens(self._vocab)
        self.add_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`; see `Engine.tokenize`.

        Raises:
            UsageError: the vocabulary has no token for a character, nor for its bytes.
            EngineFailure: the library reports more tokens than can be counted.
        """
        if self._gaps is not None:
            character = self._gaps.first_in(text, parse_special=parse_special)
            if character is not None:
                raise _inexpressible(f"the character {character!r} (U+{ord(character):04X})")
        data = text.encode("utf-8")
        size = len(data) + 2 if len(data) < 1024 else len(data) // 2
        for _ in range(2):
            tokens = (self._lib.llama_token * size)()
            count = self._lib.llama_tokenize(
                self._vocab, data, len(data), tokens, size, add_special, parse_special
            )
            if count >= 0:
                return self._known(tokens[:count])
            size = -count
        raise EngineFailure(f"the tokenizer failed on a text of {len(data)} bytes")

    @cached_property
    def _gaps(self) -> Gaps | None:
        """Looked for with the first text: only sentence pieces end the process on what they cannot spell."""
        if self._type != _SENTENCE_PIECES:
            return None
        flag = ctypes.create_string_buffer(8)
        key = b"tokenizer.ggml.add_space_prefix"
        self._lib.llama_model_meta_val_str(self._model, key, flag, len(flag))
        return find_gaps(
            self.n_tokens,
            lambda token: self._lib.llama_vocab_get_text(self._vocab, token),
            lambda token: self._lib.llama_vocab_get_attr(self._vocab, token),
            prefixes_space=flag.value != b"false",
        )

    def _known(self, tokens: list[int]) -> list[int]:
        """`tokens`, unless one is "none": no token for a part of the text, and no unknown token either."""
        if self._type not in (_SENTENCE_PIECES, _BYTE_PAIRS) and min(tokens, default=0) < 0:
            raise _inexpressible("a part of this text")
        return tokens

    def piece(self, token: int) -> bytes:
        """Bytes of one token, control tokens by their name. The buffer grows: some pieces exceed 64 bytes."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def _read_piece(self, token: int) -> bytes:
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def is_eog(self, token: int) -> bool:
        """True when the token ends a turn; a vocabulary may have several such tokens."""
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))

    def is_control(self, token: int) -> bool:
        """True for control tokens, which are never shown."""
        return bool(self._lib.llama_vocab_is_control(self._vocab, token))

    @cached_property
    def eog_tokens(self) -> list[int]:
        """All end-of-generation tokens; found once, since a walk of a large vocabulary takes 0.1 s."""
        return [token for token in range(self.n_tokens) if self.is_eog(token)]

    def suppressed_tokens(self) -> list[int]:
        """Tokens the model's file asks never to sample."""
        count = ctypes.c_int32()
        tokens = self._lib.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(count))
        return [int(tokens[i]) for i in range(count.value)] if tokens else []

    def text_of(self, role: str) -> str:
        """Text of the `bos` or `eos` token, empty when there is none."""
        token = {"bos": self._lib.llama_vocab_bos, "eos": self._lib.llama_vocab_eos}[role](self._vocab)
        return self.piece(token).decode("utf-8", "replace") if token >= 0 else ""
