"""Vocabularies that cannot spell every text: an error instead of the engine's end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.engine.inexpressible import find_gaps
from llmrun.engine.vocab import Vocab
from llmrun.engine.vocab_only import open_vocab
from llmrun.errors import UsageError

from tests.support import vocab
from tests.support.archs import hyper, write_arch
from tests.support.gguf_writer import Value
from tests.support.vocab import Token, TokenType

NORMAL, CONTROL, USER, BYTE = TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE
# "!" is inside tokens only; U+20AC has two of its three bytes, U+00E9 both.
TOKENS: tuple[Token, ...] = (
    *vocab.BASE[:3],
    *((text, NORMAL) for text in ("\u2581", "a", "b", "ab", "\u2581a", "\u65e5")),
    ("<|!|>", CONTROL),
    ("<!>", USER),
    *((f"<0x{byte:02X}>", BYTE) for byte in (0x0A, 0xC3, 0xA9, 0xE2, 0x82)),
)


def write(path: Path, tokens: Sequence[Token], **keys: Value | None) -> Path:
    fill = ((f"fill{i}", NORMAL) for i in range(hyper("llama").n_vocab - len(tokens)))
    changed = vocab.metadata([*tokens, *fill], add_bos=False)
    return write_arch(
        path, "llama", keys=dict(changed) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    )


@pytest.fixture(scope="module")
def gappy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocab]:
    path = write(tmp_path_factory.mktemp("gappy") / "m.gguf", TOKENS)
    with open_vocab(path) as opened:
        yield opened


def spelled(opened: Vocab, text: str, *, parse_special: bool = False) -> bytes:
    tokens = opened.tokenize(text, add_special=False, parse_special=parse_special)
    return b"".join(map(opened.piece, tokens))


@pytest.mark.parametrize("text", ["", "a", "ab a\n", "é", "日ab", "<!>a", "a<!><!>b"])
def test_what_has_tokens_is_read(gappy: Vocab, text: str) -> None:
    assert spelled(gappy, text) == text.encode()


@pytest.mark.parametrize(
    ("text", "named"), [("abc", "U+0063"), ("a€", "U+20AC"), ("x" * 50, "U+0078"), ("<|!|>", "U+003C")]
)
def test_what_has_none_is_named(gappy: Vocab, text: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        gappy.tokenize(text, add_special=False, parse_special=False)
    assert named in error.value.message


def test_special_tokens_are_no_text(gappy: Vocab) -> None:
    assert spelled(gappy, "a<|!|>b<!>", parse_special=True) == b"a<|!|>b<!>"
    with pytest.raises(UsageError):
        gappy.tokenize("a<|!|", add_special=False, parse_special=True)


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(st.sampled_from(["a", "b", " ", "\n", "é", "日", "€", "c", "<!>", "<|!|>", "!"]), max_size=8),
    st.booleans(),
)
def test_a_text_is_spelled_or_refused(gappy: Vocab, parts: list[str], parse_special: bool) -> None:
    text = "".join(parts)
    lacking = {"€", "c", "!"} | (set() if parse_special else {"<|!|>"})
    if lacking & set(parts):
        with pytest.raises(UsageError):
            gappy.tokenize(text, add_special=False, parse_special=parse_special)
    else:
        assert spelled(gappy, text, parse_special=parse_special) == text.encode()


def test_the_space_that_the_engine_puts_first_counts(tmp_path: Path) -> None:
    tokens = [token for token in TOKENS if token[0] not in ("\u2581", "\u2581a")]
    with open_vocab(write(tmp_path / "with.gguf", tokens, add_space_prefix=True)) as opened:
        assert opened.tokenize("", add_special=False, parse_special=False) == []
        with pytest.raises(UsageError, match="' '"):
            opened.tokenize("b", add_special=False, parse_special=False)
    with open_vocab(write(tmp_path / "without.gguf", tokens)) as opened:
        assert spelled(opened, "b") == b"b"


@pytest.mark.parametrize("text", ["c", "a€", "<|!|>"])
def test_the_engine_ends_on_what_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "m.gguf", TOKENS)
    unguarded = (
        "import sys; from pathlib import Path; from llmrun.engine.vocab_only import open_vocab\n"
        "with open_vocab(Path(sys.argv[1])) as v:\n"
        "    v._gaps = None; v.tokenize(sys.argv[2], add_special=False, parse_special=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", unguarded, str(path), text], check=False, capture_output=True
    )
    assert done.returncode < 0


def test_a_whole_vocabulary_is_read_up_to_its_last_byte(tmp_path: Path) -> None:
    asked: list[int] = []

    def text_of(token: int) -> bytes:
        asked.append(token)
        return vocab.BASE[token][0].encode() if token < len(vocab.BASE) else b"more"

    assert find_gaps(200_000, text_of, lambda _: 0, prefixes_space=True) is None
    assert len(asked) == len(vocab.BASE)


def test_no_token_and_no_unknown_token(tmp_path: Path) -> None:
    """An RWKV tokenizer puts "none" for a byte that nothing begins with."""
    keys: dict[str, Value | None] = {"model": "rwkv", "unknown_token_id": None}
    letters: list[Token] = [(text, NORMAL) for text in ("\\n", "a", "b", "ab", "f", "<")]
    with open_vocab(write(tmp_path / "m.gguf", letters, **keys)) as opened:
        assert spelled(opened, "abba\n") == b"abba\n"
        with pytest.raises(UsageError, match="no token"):
            opened.tokenize("abc", add_special=False, parse_special=False)
