"""A model from plain numbers: `MemoryFacts` for one that has no file yet."""

from __future__ import annotations

import math

from llmrun.errors import UsageError
from llmrun.gguf.hparams import LayerFacts, MemoryFacts
from llmrun.gguf.layers import MAX_LAYERS
from llmrun.gguf.weights import INPUT_SLOT, LayerShape, Weight
from llmrun.memory.quants import QUANT_BITS

_WIDTH_STEP = 128
_PARAMS_PER_LAYER = 12  # of a transformer's layer, in squares of its width
_FEED_FORWARD_RATIO = 3.5
_LARGEST_EMBEDDING_SHARE = 0.5


def bits_of(quant: str) -> float:
    """Bits a weight of a quantization by its name, in any letter case.

    Raises:
        UsageError: no such name.
    """
    try:
        return QUANT_BITS[quant.upper()]
    except KeyError:
        raise UsageError(
            f"unknown quantization {quant!r}", f"choose one of {', '.join(QUANT_BITS)}"
        ) from None


def _width(layers: int, params: float) -> int:
    return _WIDTH_STEP * max(1, round(math.sqrt(params / (_PARAMS_PER_LAYER * layers)) / _WIDTH_STEP))


def from_numbers(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    params: float,
    quant: str = "Q4_K_M",
    heads: int | None = None,
    n_embd: int | None = None,
    n_vocab: int = 128_000,
    n_ctx_train: int = 0,
) -> MemoryFacts:
    """A dense model of equal layers. What is not given is guessed from the rest and touches compute only.

    Weights are `params` at the mean bits of `quant`; K/V follows from `layers`, `kv_heads` and `head_dim`.
    The width is that of a transformer with 12 squares of it a layer, the feed-forward 3.5 times as wide.

    Raises:
        UsageError: a number is out of range, or the quantization unknown.
    """
    for name, value, high in (
        ("--layers", layers, MAX_LAYERS),
        ("--kv-heads", kv_heads, 1 << 16),
        ("--head-dim", head_dim, 1 << 16),
        ("--params", params, 1 << 50),
    ):
        if not 1 <= value <= high:
            raise UsageError(f"{name} is {value:,}", f"give a number from 1 to {high:,}")
    n_embd = n_embd or _width(layers, params)
    heads = heads or max(kv_heads, round(n_embd / head_dim))
    layer = LayerFacts(
        windowed=False,
        k_width=kv_heads * head_dim,
        v_width=kv_heads * head_dim,
        index_k=0,
        index_v=0,
        state=0,
        head_k=head_dim,
        head_v=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        shape=LayerShape(ff=int(n_embd * _FEED_FORWARD_RATIO)),
    )
    return MemoryFacts(
        arch="",
        n_layer_all=layers,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx_train=n_ctx_train,
        n_swa=0,
        v_padded=layer.v_width,
        mla=False,
        layers=(layer,) * layers,
        weights=_weights(layers, int(params), bits_of(quant), n_embd * n_vocab),
        tied=False,
        tied_first=False,
    )


def _weights(layers: int, params: int, bits: float, embedding: int) -> tuple[Weight, ...]:
    """Input, layers and output; the last layer takes what does not divide, so that the sum is exact."""
    embedding = min(embedding, int(params * _LARGEST_EMBEDDING_SHARE / 2))
    counts = [(params - 2 * embedding) // layers] * layers
    counts[-1] += params - 2 * embedding - sum(counts)
    sizes = [int(count * bits / 8) for count in counts]
    outer = int(embedding * bits / 8)
    sizes[-1] += int(params * bits / 8) - sum(sizes) - 2 * outer
    table = [Weight("token_embd.weight", INPUT_SLOT, outer, embedding)]
    table += [Weight(f"blk.{il}.weight", il, sizes[il], counts[il]) for il in range(layers)]
    return (*table, Weight("output.weight", layers, outer, embedding))
