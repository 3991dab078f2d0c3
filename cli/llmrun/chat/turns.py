"""Token-exact history: a new turn continues the very tokens the model has seen and written.

Text written by a model need not tokenise back into the tokens it was sampled as: "un" + "be" + "liev" +
"able" is one sequence, the tokenizer's own split of "unbelievable" another. A chat that renders its history
to text and tokenises it anew would lose the K/V cache from the first such word on. So each sequence keeps its
history as spans, prompts and sampled answers in turn, each with its text and its tokens. When the newly
rendered prompt begins with the texts of these spans, their tokens are taken as they are and only the rest is
tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from llmrun.chat.segments import Prompt, Segment

# Bytes that UTF-8 never uses: around text in which markers are not control tokens.
PLAIN = b"\xff"


class Tokenize(Protocol):
    """`Engine.tokenize`, as the chat sees it."""

    def __call__(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What turns text into tokens: the engine's functions and its rule for the BOS token.

    `piece` gives the bytes of a token, control tokens by their name. `add_bos`: the vocabulary puts one
    first by itself; `bos_text` is its text.
    """

    tokenize: Tokenize
    piece: Callable[[int], bytes]
    add_bos: bool
    bos_text: str


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens with the text they stand for. `sampled`: written by the model, else part of a prompt."""

    text: bytes
    tokens: tuple[int, ...]
    sampled: bool


@dataclass(frozen=True, slots=True)
class History:
    """What one sequence holds, span by span."""

    spans: tuple[Span, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """All tokens in order of position."""
        return [token for span in self.spans for token in span.tokens]

    def dump(self) -> str:
        """As JSON, for `load_history`."""
        return json.dumps([[s.text.decode("latin-1"), s.tokens, s.sampled] for s in self.spans])

    def with_sampled(self, tokens: Sequence[int], piece: Callable[[int], bytes]) -> History:
        """The history after an answer of `tokens`, the closing end-of-generation token left out."""
        text = b"".join(map(piece, tokens))
        return History((*self.spans, Span(text, tuple(tokens), sampled=True)))


def load_history(text: str) -> History:
    """What `History.dump` wrote; empty if that is not what `text` is."""
    try:
        spans = [Span(t.encode("latin-1"), tuple(map(int, ids)), bool(s)) for t, ids, s in json.loads(text)]
    except (ValueError, TypeError, AttributeError):
        return History()
    return History(tuple(spans))


def continued_tokens(history: History, prompt: Prompt, tokenizer: Tokenizer) -> int:
    """How many of the tokens of `history` `splice` would take as they are."""
    key = _key(_without_extra_bos(prompt.segments, tokenizer))
    return sum(len(span.tokens) for span in _matching_spans(history.spans, key, tokenizer.piece))


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Tokens of a whole prompt, with one BOS where the vocabulary wants one and at most one elsewhere."""
    segments = _without_extra_bos(prompt.segments, tokenizer)
    return _tokenize_from_start(segments, tokenizer)


def splice(history: History, prompt: Prompt, tokenizer: Tokenizer) -> History:
    """The history whose `tokens` are the new prompt: held spans as far as they match, then the rest.

    A sampled span matches when all its text is there, or all but white space at its end, which templates
    trim. At the first span that does not match, the rest is tokenised from the end of the last one.
    """
    segments = _without_extra_bos(prompt.segments, tokenizer)
    key = _key(segments)
    spans = _matching_spans(history.spans, key, tokenizer.piece)
    start = sum(len(span.text) for span in spans)
    if spans:
        rest = _continue(_segments(key[start:]), tokenizer)
        if rest is not None:
            return History((*spans, Span(key[start:], tuple(rest), sampled=False)))
    whole = _tokenize_from_start(segments, tokenizer)
    return History((Span(key, tuple(whole), sampled=False),))


def _without_extra_bos(segments: Sequence[Segment], tokenizer: Tokenizer) -> tuple[Segment, ...]:
    """Templates write the BOS text or not, vocabularies add the token or not; the two must not add up."""
    bos = tokenizer.bos_text
    if not segments or not bos or not segments[0].special:
        return tuple(segments)
    text = segments[0].text
    bare = text
    while bare.startswith(bos):
        bare = bare[len(bos) :]
    if not tokenizer.add_bos and bare != text:
        bare = bos + bare
    return (replace(segments[0], text=bare), *segments[1:])


def _tokenize_from_start(segments: Sequence[Segment], tokenizer: Tokenizer) -> list[int]:
    first, *others = segments or [Segment("", special=True)]
    tokens = tokenizer.tokenize(first.text, add_special=tokenizer.add_bos, parse_special=first.special)
    for segment in others:
        inside = _tokenize_inside(segment, tokenizer)
        tokens += _tokenize_plainly(segment, tokenizer) if inside is None else inside
    return tokens


def _continue(segments: Sequence[Segment], tokenizer: Tokenizer) -> list[int] | None:
    """Tokens of text that follows held tokens; None if the tokenizer cannot start there."""
    tokens: list[int] = []
    for segment in segments:
        part = _tokenize_inside(segment, tokenizer)
        if part is None:
            return None
        tokens += part
    return tokens


def _tokenize_plainly(segment: Segment, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.tokenize(segment.text, add_special=False, parse_special=segment.special)


def _tokenize_inside(segment: Segment, tokenizer: Tokenizer) -> list[int] | None:
    """Tokens of a segment that does not start the prompt; None if its beginning cannot be kept.

    Some tokenizers put a blank before a text that does not start with a control token. Behind a line feed
    they do not, so the segment is then tokenised behind one, which is taken off again.
    """
    blanks = _leading_blanks(segment.text.encode())
    tokens = _tokenize_plainly(segment, tokenizer)
    if _leading_blanks(_text(tokens, tokenizer)) == blanks:
        return tokens
    tokens = _tokenize_plainly(replace(segment, text="\n" + segment.text), tokenizer)
    for count in range(1, len(tokens)):
        lead = _text(tokens[:count], tokenizer)
        if lead.strip(b" ") == b"\n" and lead.endswith(b"\n"):
            tail = tokens[count:]
            return tail if _leading_blanks(_text(tail, tokenizer)) == blanks else None
        if lead.strip(b" "):
            break
    return None


def _text(tokens: Sequence[int], tokenizer: Tokenizer) -> bytes:
    return b"".join(map(tokenizer.piece, tokens))


def _leading_blanks(text: bytes) -> int:
    return len(text) - len(text.lstrip(b" "))


def _key(segments: Sequence[Segment]) -> bytes:
    """Text of a prompt that also tells which markers in it count."""
    return b"".join(
        segment.text.encode() if segment.special else PLAIN + segment.text.encode() + PLAIN
        for segment in segments
    )


def _segments(key: bytes) -> list[Segment]:
    """The segments of a key again."""
    parts = key.split(PLAIN)
    return [Segment(part.decode(), special=i % 2 == 0) for i, part in enumerate(parts) if part]


def _matching_spans(spans: Sequence[Span], key: bytes, piece: Callable[[int], bytes]) -> list[Span]:
    """The first spans of a history whose text `key` begins with; the last one may be cut short."""
    matching: list[Span] = []
    start = 0
    for span in spans:
        if span.sampled and PLAIN in span.text:
            break
        end = start + len(span.text)
        if key.startswith(span.text, start) and _between_characters(key, end):
            matching.append(span)
            start = end
            continue
        if span.sampled and (kept := _trimmed(span, key[start:], piece)) is not None:
            matching.append(kept)
        break
    return matching


def _trimmed(span: Span, text: bytes, piece: Callable[[int], bytes]) -> Span | None:
    """The tokens of `span` that `text` still begins with, if only white space at its end is missing.

    A character that was cut short by the end of generation counts as missing, too: it was never shown.
    """
    pairs = zip(span.text, text, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(span.text), len(text)))
    if common < len(span.text.decode(errors="ignore").rstrip().encode()):
        return None
    count = length = end = 0
    for index, token in enumerate(span.tokens, start=1):
        end += len(piece(token))
        if end > common:
            break
        if _between_characters(text, end):
            count, length = index, end
    return Span(span.text[:length], span.tokens[:count], sampled=True)


def _between_characters(text: bytes, place: int) -> bool:
    """True unless `place` lies inside a UTF-8 character."""
    return place >= len(text) or text[place] & 0xC0 != 0x80
