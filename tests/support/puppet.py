"""Models that say exactly what a script tells them.

A puppet is a one-layer llama model whose next token depends on the current token alone: embeddings are
one-hot, attention and feed-forward add nothing, and row i of `output.weight` points at the token whose
successor is i. Under greedy sampling it recites its script after the control token `<|go|>`, which the
default chat template puts last, and ends with EOS (or starts again with `loop=True`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import vocab
from tests.support.gguf_writer import Tensor, Value, write_gguf
from tests.support.vocab import EOS, FIRST_BYTE, Token, TokenType

GO = "<|go|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|go|>{% endif %}"
)
_HEAD_SIZE = 32
_FFN = 32


@dataclass(frozen=True, slots=True)
class Control:
    """A control token: ends or structures a turn, never shown."""

    text: str


@dataclass(frozen=True, slots=True)
class UserDefined:
    """A token that is matched as a whole in text and shown, such as `<think>`."""

    text: str


Item = int | str | Control | UserDefined
"""A script item: a raw byte, a normal text token, a control token, or a user-defined token."""


@dataclass(frozen=True, slots=True)
class Puppet:
    """A written puppet: its file, the ids of its script, and the text that the script shows."""

    path: Path
    tokens: tuple[int, ...]
    go_token: int
    shown: bytes


def byte_items(text: str) -> list[Item]:
    """The bytes of `text` as byte tokens."""
    return list(text.encode())


def _entry(item: str | Control | UserDefined) -> Token:
    if isinstance(item, Control):
        return item.text, TokenType.CONTROL
    if isinstance(item, UserDefined):
        return item.text, TokenType.USER_DEFINED
    return vocab.piece(item), TokenType.NORMAL


def _shown(item: Item) -> bytes:
    if isinstance(item, int):
        return bytes([item])
    if isinstance(item, Control):
        return b""
    return (item if isinstance(item, str) else item.text).encode()


def _tensors(n_vocab: int, width: int, successors: dict[int, int]) -> list[Tensor]:
    embed = array("f", bytes(4 * width * n_vocab))
    output = array("f", bytes(4 * width * n_vocab))
    for token in range(n_vocab):
        embed[token * width + token] = 1.0
        output[successors.get(token, EOS) * width + token] = 1.0
    ones = array("f", [1.0] * width)
    heads = {"attn_q": (width, _HEAD_SIZE), "attn_k": (width, _HEAD_SIZE), "attn_v": (width, _HEAD_SIZE)}
    mats = heads | {
        "attn_output": (_HEAD_SIZE, width),
        "ffn_gate": (width, _FFN),
        "ffn_up": (width, _FFN),
        "ffn_down": (_FFN, width),
    }
    return [
        Tensor("token_embd.weight", (width, n_vocab), embed),
        Tensor("output_norm.weight", (width,), ones),
        Tensor("output.weight", (width, n_vocab), output),
        Tensor("blk.0.attn_norm.weight", (width,), ones),
        Tensor("blk.0.ffn_norm.weight", (width,), ones),
        *(Tensor(f"blk.0.{name}.weight", dims, bytes(4 * dims[0] * dims[1])) for name, dims in mats.items()),
    ]


def _architecture(width: int, n_ctx: int) -> list[tuple[str, Value]]:
    return [
        ("general.architecture", "llama"),
        ("general.name", "puppet"),
        ("general.file_type", 0),
        ("llama.block_count", 1),
        ("llama.context_length", n_ctx),
        ("llama.embedding_length", width),
        ("llama.feed_forward_length", _FFN),
        ("llama.attention.head_count", 1),
        ("llama.attention.head_count_kv", 1),
        ("llama.attention.key_length", _HEAD_SIZE),
        ("llama.attention.value_length", _HEAD_SIZE),
        ("llama.attention.layer_norm_rms_epsilon", 1e-6),
        ("llama.rope.dimension_count", _HEAD_SIZE),
    ]


def write_puppet(
    path: Path,
    script: Sequence[Item],
    *,
    template: str | None = TEMPLATE,
    loop: bool = False,
    n_ctx: int = 2048,
    eos: bool = True,
    add_bos: bool = True,
    extra: Iterable[tuple[str, Value]] = (),
) -> Puppet:
    """Write a puppet. Each token may occur once in `script` (spell repeats differently).

    `extra` adds metadata keys and replaces those of the same name; `template=None` leaves the chat
    template out; `eos=False` names no EOS token in the file.
    """
    tokens: list[Token] = [*vocab.BASE, (GO, TokenType.CONTROL)]
    go_token = len(tokens) - 1
    ids: list[int] = []
    for item in script:
        if isinstance(item, int):
            ids.append(FIRST_BYTE + item)
            continue
        tokens.append(_entry(item))
        ids.append(len(tokens) - 1)
    if len(set(ids)) != len(ids):
        raise ValueError("each token may occur once in a script")
    width = len(tokens) + -len(tokens) % 32
    successors = dict(zip([go_token, *ids], [*ids, ids[0] if loop else EOS], strict=True))

    keys = dict(_architecture(width, n_ctx)) | dict(vocab.metadata(tokens, eos=eos, add_bos=add_bos))
    if template is not None:
        keys["tokenizer.chat_template"] = template
    keys |= dict(extra)
    write_gguf(path, keys.items(), _tensors(len(tokens), width, successors))
    return Puppet(path, tuple(ids), go_token, b"".join(map(_shown, script)))
