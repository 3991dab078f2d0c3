"""Small F32 models with random weights, for laws that quantization noise would hide.

Four memory kinds: "llama" (full attention), "gemma3" (sliding window of 32 on all but every sixth layer),
"mamba" (recurrent) and "falcon-h1" (hybrid: attention and a recurrent state in each layer). Weights have
standard deviation 1/sqrt(fan-in), so activations keep their size through the layers, and logits have a
standard deviation near 3. Rows of special tokens are zero, so that greedy sampling never ends a turn by
chance; in a `legible` model those of bytes are, too, so that it answers with words.
"""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from tests.support import vocab
from tests.support.gguf_writer import Tensor, Value, write_gguf
from tests.support.vocab import Token, TokenType

Arch = Literal["llama", "gemma3", "mamba", "falcon-h1"]

N_VOCAB, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_SIZE = 300, 64, 128, 4, 2, 16
WINDOW = 32
N_LAYER: dict[Arch, int] = {"llama": 4, "gemma3": 6, "mamba": 3, "falcon-h1": 2}
_D_INNER, _D_STATE, _D_CONV, _DT_RANK = 128, 16, 4, 4
_N_GROUP = 1
_LOGIT_STD = 3.0
_FACTORS = (("long", 3.0), ("short", 1.0))
_NORMAL = [NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]


class _Weights:
    """Random tensors; a byte of randomness picks each weight among 256 normal quantiles."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def normal(self, name: str, dims: tuple[int, ...], std: float) -> Tensor:
        table = [std * z for z in _NORMAL]
        data = array("f", map(table.__getitem__, self._random.randbytes(math.prod(dims))))
        return Tensor(name, dims, data)

    def matrix(self, name: str, n_in: int, n_out: int, gain: float = 1.0) -> Tensor:
        return self.normal(f"{name}.weight", (n_in, n_out), gain / math.sqrt(n_in))

    def embeddings(self, embed_std: float, *, legible: bool) -> list[Tensor]:
        output = self.normal("output.weight", (N_EMBD, N_VOCAB), _LOGIT_STD / math.sqrt(N_EMBD))
        assert isinstance(output.data, array)
        unlikely = {TokenType.UNKNOWN, TokenType.CONTROL, *([TokenType.BYTE] if legible else [])}
        for token, (_, kind) in enumerate(_tokens()):
            if kind in unlikely:
                output.data[token * N_EMBD : (token + 1) * N_EMBD] = array("f", bytes(4 * N_EMBD))
        return [
            self.normal("token_embd.weight", (N_EMBD, N_VOCAB), embed_std),
            constant("output_norm.weight", N_EMBD, 1.0),
            output,
        ]


def constant(name: str, n: int, value: float) -> Tensor:
    """A vector with one value throughout."""
    return Tensor(name, (n,), array("f", [value] * n))


def _tokens() -> list[Token]:
    tokens: list[Token] = [*vocab.BASE, ("<|go|>", TokenType.CONTROL)]
    letters = "abcdefghijklmnopqrstuvwxyz"
    while len(tokens) < N_VOCAB:
        i = len(tokens)
        tokens.append((vocab.piece(f" {letters[i % 26]}{letters[i // 7 % 26]}"), TokenType.NORMAL))
    return tokens


def _attention(w: _Weights, b: str) -> list[Tensor]:
    q, kv = N_HEAD * HEAD_SIZE, N_HEAD_KV * HEAD_SIZE
    return [
        constant(f"{b}attn_norm.weight", N_EMBD, 1.0),
        w.matrix(f"{b}attn_q", N_EMBD, q, gain=1.5),
        w.matrix(f"{b}attn_k", N_EMBD, kv, gain=1.5),
        w.matrix(f"{b}attn_v", N_EMBD, kv),
        w.matrix(f"{b}attn_output", q, N_EMBD),
    ]


def _feed_forward(w: _Weights, b: str) -> list[Tensor]:
    return [
        constant(f"{b}ffn_norm.weight", N_EMBD, 1.0),
        w.matrix(f"{b}ffn_gate", N_EMBD, N_FF),
        w.matrix(f"{b}ffn_up", N_EMBD, N_FF),
        w.matrix(f"{b}ffn_down", N_FF, N_EMBD),
    ]


def _gemma3_norms(b: str) -> list[Tensor]:
    return [
        constant(f"{b}attn_q_norm.weight", HEAD_SIZE, 1.5),
        constant(f"{b}attn_k_norm.weight", HEAD_SIZE, 1.5),
        constant(f"{b}post_attention_norm.weight", N_EMBD, 1.0),
        constant(f"{b}post_ffw_norm.weight", N_EMBD, 1.0),
    ]


def _mamba_layer(w: _Weights, b: str) -> list[Tensor]:
    decay = array("f", [-float(1 + i % _D_STATE) for i in range(_D_STATE * _D_INNER)])
    return [
        constant(f"{b}attn_norm.weight", N_EMBD, 1.0),
        w.matrix(f"{b}ssm_in", N_EMBD, 2 * _D_INNER),
        w.matrix(f"{b}ssm_conv1d", _D_CONV, _D_INNER),
        constant(f"{b}ssm_conv1d.bias", _D_INNER, 0.1),
        w.matrix(f"{b}ssm_x", _D_INNER, _DT_RANK + 2 * _D_STATE),
        w.matrix(f"{b}ssm_dt", _DT_RANK, _D_INNER),
        constant(f"{b}ssm_dt.bias", _D_INNER, -2.0),
        Tensor(f"{b}ssm_a", (_D_STATE, _D_INNER), decay),
        constant(f"{b}ssm_d", _D_INNER, 1.0),
        w.matrix(f"{b}ssm_out", _D_INNER, N_EMBD),
    ]


def _mamba2_mixer(w: _Weights, b: str) -> list[Tensor]:
    conv = _D_INNER + 2 * _N_GROUP * _D_STATE
    return [
        w.matrix(f"{b}ssm_in", N_EMBD, _D_INNER + conv + _DT_RANK),
        w.matrix(f"{b}ssm_conv1d", _D_CONV, conv),
        constant(f"{b}ssm_conv1d.bias", conv, 0.1),
        constant(f"{b}ssm_dt.bias", _DT_RANK, -2.0),
        Tensor(f"{b}ssm_a", (1, _DT_RANK), array("f", [-1.0] * _DT_RANK)),
        Tensor(f"{b}ssm_d", (1, _DT_RANK), array("f", [1.0] * _DT_RANK)),
        Tensor(f"{b}ssm_norm.weight", (_D_INNER // _N_GROUP, _N_GROUP), array("f", [1.0] * _D_INNER)),
        w.matrix(f"{b}ssm_out", _D_INNER, N_EMBD),
    ]


def _tensors(arch: Arch, seed: int, *, legible: bool) -> list[Tensor]:
    w = _Weights(seed)
    # gemma3 multiplies its embeddings by sqrt(n_embd) when it reads them.
    tensors = w.embeddings(1 / math.sqrt(N_EMBD) if arch == "gemma3" else 1.0, legible=legible)
    for layer in range(N_LAYER[arch]):
        b = f"blk.{layer}."
        if arch == "mamba":
            tensors += _mamba_layer(w, b)
        else:
            tensors += _attention(w, b)
            if arch == "falcon-h1":
                feed = [
                    replace(t, name=t.name.replace("ffn_norm.weight", "ffn_norm"))
                    for t in _feed_forward(w, b)
                ]
                tensors += _mamba2_mixer(w, b) + feed
                continue
            tensors += _feed_forward(w, b)
            tensors += _gemma3_norms(b) if arch == "gemma3" else []
    return tensors


def _architecture(arch: Arch, n_ctx: int) -> list[tuple[str, Value]]:
    keys: list[tuple[str, Value]] = [
        ("general.architecture", arch),
        ("general.name", f"tiny {arch}"),
        ("general.file_type", 0),
        (f"{arch}.block_count", N_LAYER[arch]),
        (f"{arch}.context_length", n_ctx),
        (f"{arch}.embedding_length", N_EMBD),
        (f"{arch}.attention.layer_norm_rms_epsilon", 1e-6),
    ]
    if arch == "mamba":
        return [
            *keys,
            ("mamba.feed_forward_length", 0),
            ("mamba.attention.head_count", 0),
            ("mamba.ssm.conv_kernel", _D_CONV),
            ("mamba.ssm.inner_size", _D_INNER),
            ("mamba.ssm.state_size", _D_STATE),
            ("mamba.ssm.time_step_rank", _DT_RANK),
        ]
    keys += [
        (f"{arch}.feed_forward_length", N_FF),
        (f"{arch}.attention.head_count", N_HEAD),
        (f"{arch}.attention.head_count_kv", N_HEAD_KV),
        (f"{arch}.attention.key_length", HEAD_SIZE),
        (f"{arch}.attention.value_length", HEAD_SIZE),
        (f"{arch}.rope.dimension_count", HEAD_SIZE),
    ]
    if arch == "gemma3":
        keys.append(("gemma3.attention.sliding_window", WINDOW))
    if arch == "falcon-h1":
        keys += [
            ("falcon-h1.ssm.conv_kernel", _D_CONV),
            ("falcon-h1.ssm.inner_size", _D_INNER),
            ("falcon-h1.ssm.state_size", _D_STATE),
            ("falcon-h1.ssm.time_step_rank", _DT_RANK),
            ("falcon-h1.ssm.group_count", _N_GROUP),
        ]
    return keys


def write_tiny(
    path: Path,
    arch: Arch,
    *,
    seed: int = 0,
    n_ctx: int = 4096,
    template: str | None = None,
    short_rope: int | None = None,
    legible: bool = False,
) -> Path:
    """Write a random model; the same `seed` gives the same bytes. `short_rope`: it is a LongRoPE model, and
    contexts of more cells than that turn keys by other factors."""
    keys = _architecture(arch, n_ctx) + vocab.metadata(_tokens())
    if short_rope is not None:
        scaling = f"{arch}.rope.scaling"
        keys += [(f"{scaling}.type", "longrope"), (f"{scaling}.original_context_length", short_rope)]
    if template is not None:
        keys.append(("tokenizer.chat_template", template))
    tensors = _tensors(arch, seed, legible=legible)
    if short_rope is not None:
        tensors += [
            constant(f"rope_factors_{name}.weight", HEAD_SIZE // 2, factor) for name, factor in _FACTORS
        ]
    return write_gguf(path, keys, tensors)
