"""Characters that a vocabulary has no tokens for, found before the engine's tokenizer meets them.

A SentencePiece tokenizer joins characters as long as the result is a token. What is left are tokens and
single characters, and the latter become one token for each of their bytes: `<0x41>`, or the byte itself.
Where a file has no such token, the engine throws what nothing catches and its process ends
(src/llama-vocab.cpp, llm_tokenizer_spm_session::resegment and llama_vocab::byte_to_token). A text is safe if
each character that is no token has its bytes among the tokens. Texts of special tokens are cut out
beforehand, longest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_BLANK = "\u2581"  # SentencePiece's spelling of a space
_BYTE_OF = {b"<0x%02X>" % byte: byte for byte in range(256)} | {bytes([byte]): byte for byte in range(1, 256)}
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16  # llama_token_attr


@dataclass(frozen=True, slots=True)
class Gaps:
    """What a vocabulary without all byte tokens can express; `specials` go from long to short."""

    missing_bytes: frozenset[int]
    characters: frozenset[str]
    specials: tuple[tuple[str, bool], ...]
    """Text of each special token, and whether it counts as one in any text (user-defined)."""
    prefixes_space: bool

    def first_in(self, text: str, *, parse_special: bool) -> str | None:
        """The first character of `text` that the tokenizer would end the process on, if there is one."""
        pieces = [text]
        for special, always in self.specials:
            if always or parse_special:
                pieces = [part for piece in pieces for part in piece.split(special)]
        plain = "".join(pieces)
        if plain and self.prefixes_space:
            plain = " " + plain
        for character in dict.fromkeys(plain.replace(" ", _BLANK)):
            if character not in self.characters and not self.missing_bytes.isdisjoint(character.encode()):
                return " " if character == _BLANK else character
        return None


def find_gaps(
    n_tokens: int, text_of: Callable[[int], bytes], attr_of: Callable[[int], int], *, prefixes_space: bool
) -> Gaps | None:
    """The gaps of a SentencePiece vocabulary; None where every byte is a token.

    It stops at the last byte token, which common vocabularies have among their first thousand.
    """
    missing = set(range(256))
    for token in range(n_tokens):
        missing.discard(_BYTE_OF.get(text_of(token), -1))
        if not missing:
            return None
    texts = [text_of(token).decode("utf-8", "surrogateescape") for token in range(n_tokens)]
    specials = []
    for token, text in enumerate(texts):
        attr = attr_of(token)
        if text and attr & (_UNKNOWN | _CONTROL | _USER_DEFINED):
            specials.append((text, not attr & (_UNKNOWN | _CONTROL)))
    specials.sort(key=lambda special: len(special[0].encode("utf-8", "surrogateescape")), reverse=True)
    characters = frozenset(text for text in texts if len(text) == 1)
    return Gaps(frozenset(missing), characters, tuple(specials), prefixes_space)
