"""The vocabulary: text to tokens, tokens to bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.engine.api import ModelParams
from llmrun.engine.model import Model
from llmrun.engine.vocab import Vocab

from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import Control, Item, Puppet, UserDefined, write_puppet
from tests.support.vocab import BOS, EOS

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  two  spaces ",
    "\n\n\tindented\r\n",
    "ünïcödé ß €",
    "日本語のテキスト 한국어",
    "क्षेत्रफल कार्यकर्ता",
    "👩‍👩‍👧‍👦 🇩🇪 \u0301combining",
    "NUL \0 inside",
    "\n" + " " * 200 + "x",
    "x" * 5000,
    "\U0010ffff\ufeff\u200b",
]


def load(path: Path) -> Model:
    params = ModelParams(str(path), gpu_layers=0)
    return Model(params, extra_bufts=False, progress=lambda _: None, cancelled=threading.Event())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(smollm2_path, id="smollm2"),
        pytest.param(gemma_path, id="gemma", marks=pytest.mark.slow),
    ],
)
def real(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    model = load(request.param())
    yield model.vocab
    model.close()


def text_of(vocab: Vocab, tokens: list[int]) -> bytes:
    return b"".join(map(vocab.piece, tokens))


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(real: Vocab, text: str) -> None:
    tokens = real.tokenize(text, add_special=False, parse_special=False)
    assert text_of(real, tokens) == text.encode()


def test_any_text_comes_back(real: Vocab) -> None:
    """All but the bytes that a vocabulary has no token for: SmolLM2 lacks F1 and some control characters."""
    pieces = map(real.piece, range(real.n_tokens))
    known = {piece[0] for piece in pieces if len(piece) == 1}

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
    def law(text: str) -> None:
        tokens = real.tokenize(text, add_special=False, parse_special=False)
        assert text_of(real, tokens) == bytes(byte for byte in text.encode() if byte in known)

    law()


def test_every_piece_is_read_whole(real: Vocab) -> None:
    """The pieces of all tokens; the longest exceed the 32 bytes at which other programs cut."""
    pieces = [real.piece(token) for token in range(real.n_tokens)]
    assert max(map(len, pieces)) > 32
    assert all(pieces[token] for token in range(real.n_tokens) if not real.is_control(token))


def test_control_markers_typed_by_a_user_stay_text(real: Vocab) -> None:
    for token in real.eog_tokens:
        marker = real.piece(token).decode()
        assert real.tokenize(marker, add_special=False, parse_special=True) == [token]
        as_text = real.tokenize(marker, add_special=False, parse_special=False)
        assert token not in as_text
        assert text_of(real, as_text) == marker.encode()


def test_a_vocabulary_that_wants_a_bos_gets_one(real: Vocab) -> None:
    plain = real.tokenize("hello", add_special=False, parse_special=True)
    special = real.tokenize("hello", add_special=True, parse_special=True)
    bos = real.tokenize(real.text_of("bos"), add_special=False, parse_special=True)
    assert len(bos) == 1
    assert special == (bos if real.add_bos else []) + plain


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Puppet, Vocab]]:
    """A vocabulary with a very long piece, a control and a user-defined token."""
    script: list[Item] = ["long " * 100, Control("<|im_end|>"), UserDefined("<think>")]
    puppet = write_puppet(tmp_path_factory.mktemp("odd") / "p.gguf", script)
    model = load(puppet.path)
    yield puppet, model.vocab
    model.close()


def test_a_piece_of_500_bytes(odd: tuple[Puppet, Vocab]) -> None:
    puppet, vocab = odd
    assert vocab.piece(puppet.tokens[0]) == b"long " * 100
    assert vocab.piece(puppet.tokens[0]) == b"long " * 100  # from memory


def test_kinds_of_tokens(odd: tuple[Puppet, Vocab]) -> None:
    puppet, vocab = odd
    text, control, user_defined = puppet.tokens
    assert [vocab.is_control(t) for t in (text, control, user_defined, EOS)] == [False, True, False, True]
    assert [vocab.is_eog(t) for t in (text, control, user_defined, EOS)] == [False, True, False, True]
    assert set(vocab.eog_tokens) == {control, EOS}
    assert (vocab.text_of("bos"), vocab.text_of("eos")) == ("<s>", "</s>")
    assert vocab.suppressed_tokens() == []


def test_special_text_is_parsed_only_when_asked(odd: tuple[Puppet, Vocab]) -> None:
    puppet, vocab = odd
    _, control, user_defined = puppet.tokens
    text = "a<|im_end|><think>"
    assert control in vocab.tokenize(text, add_special=False, parse_special=True)
    as_text = vocab.tokenize(text, add_special=True, parse_special=False)
    assert control not in as_text
    assert as_text[-1] == user_defined
    assert as_text.count(BOS) == 1


def test_without_bos_and_eos(tmp_path: Path) -> None:
    model = load(write_puppet(tmp_path / "p.gguf", ["a"], add_bos=False).path)
    assert not model.vocab.add_bos
    assert BOS not in model.vocab.tokenize("hi", add_special=True, parse_special=True)
    model.close()
