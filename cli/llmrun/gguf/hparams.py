"""`GgufHeader` -> `MemoryFacts`: what decides how much memory a model takes, layer by layer.

A layer keeps K and V rows for every position (attention), a state of fixed size for every sequence
(recurrent), both, or neither. Which, and how wide, follows from a few keys and from rules of each
architecture that the file does not spell out. The rules are those of llama.cpp: load_hparams in
src/llama-model.cpp, load_arch_hparams in src/models/*.cpp, n_embd_r and n_embd_s in src/llama-hparams.cpp,
create_memory in src/llama-model.cpp. Like all facts these describe and never raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmrun.gguf.header import GgufHeader
from llmrun.gguf.layers import MAX_LAYERS, SlidingWindow, per_layer, sliding_window
from llmrun.gguf.recurrent import State, recurrent_state
from llmrun.gguf.weights import LayerShape, Weight, layer_shapes, weight_table

# Caches that llama.cpp builds in ways of their own (llama-kv-cache-dsv4.cpp, -dsa-iswa.cpp).
_STREAMS = {"gemma3n": 4}
_OWN_CACHES = frozenset({"deepseek4", "dots3note"})
_NO_V_INDEX = frozenset({"qwen4exp", "glm5-next"})
_INDEXED = frozenset({"deepseek32", "glm-dsa", "hy_v4", "minimax-m3", *_NO_V_INDEX})


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer. Widths count numbers a position, over all KV heads; 0 where the layer has no such cache.

    `index_k`, `index_v`: rows of a sparse-attention indexer. `state`: f32 numbers a sequence.
    """

    windowed: bool
    k_width: int
    v_width: int
    index_k: int
    index_v: int
    state: int
    head_k: int
    head_v: int
    heads: int
    kv_heads: int
    shape: LayerShape


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """A model's memory as its header tells it.

    `layers` are those a conversation runs through; `n_layer_all` counts extra prediction layers too, since
    they take places when layers are offloaded. `v_padded` is the widest V row of any layer, to which every
    row is padded without flash attention. `mla`: keys and values share one latent row, kept as K only.
    `tied`: the output uses the input's embedding; `tied_first`: the engine makes the output's copy first, so
    that one device gets both unless the file is mapped. `per_layer_width`: numbers a token of inputs that
    every layer gets of its own. `streams`: residual streams. `unmodelled` names what the formulas leave
    out, empty where they cover everything.
    """

    arch: str
    n_layer_all: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_swa: int
    v_padded: int
    mla: bool
    layers: tuple[LayerFacts, ...]
    weights: tuple[Weight, ...]
    tied: bool
    tied_first: bool
    per_layer_width: int = 0
    streams: int = 1
    unmodelled: str = ""

    @property
    def n_slots(self) -> int:
        """Places that offloading counts: every layer, and the output after the last."""
        return self.n_layer_all + 1

    @property
    def is_moe(self) -> bool:
        """True where some layer has experts."""
        return any(w.expert for w in self.weights) or any(layer.shape.n_expert for layer in self.layers)


class _Keys:
    """Typed reads of `<arch>.<suffix>`."""

    def __init__(self, header: GgufHeader) -> None:
        self.header, self.arch = header, header.arch

    def count(self, suffix: str, default: int = 0) -> int:
        value = self.header.integer(f"{self.arch}.{suffix}")
        return default if value is None else max(0, value)

    def has(self, suffix: str) -> bool:
        return f"{self.arch}.{suffix}" in self.header.metadata

    def each(self, suffix: str, n: int, default: tuple[int, ...]) -> tuple[int, ...]:
        values = per_layer(self.header, f"{self.arch}.{suffix}", n, default)
        return tuple(max(0, value) for value in values)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Layers in the file, layers with router or repeats (all), and those of a conversation (trunk)."""

    listed: int
    everything: int
    trunk: int


def _layer_counts(keys: _Keys) -> _Counts:
    listed = keys.count("block_count")
    if not 0 < listed <= MAX_LAYERS:
        return _Counts(0, 0, 0)
    if keys.arch == "nanbeige":  # the same weights are run several times, each time with a cache of its own
        everything = min(MAX_LAYERS, listed * max(1, keys.count("num_loops", 1)))
        return _Counts(listed, everything, everything)
    if keys.arch == "graniteswitch":  # one more layer keeps the router's K and V
        return _Counts(listed, listed + 1, listed + 1)
    trunk = listed - keys.count("nextn_predict_layers")
    return _Counts(listed, listed, trunk if trunk > 0 else listed)


def _looped(values: tuple[int, ...], counts: _Counts) -> tuple[int, ...]:
    if counts.everything == counts.listed + 1:
        return (*values, 1)
    return values * (counts.everything // max(1, counts.listed))


def _kept_from_start(keys: _Keys, n_layer: int) -> int:
    """Layers from this one on read the cache of an earlier layer."""
    if keys.arch == "gemma3n":
        return 20
    if keys.arch == "gemma4":
        return max(0, n_layer - keys.count("attention.shared_kv_layers"))
    return n_layer


def _window(keys: _Keys, counts: _Counts, state: State) -> SlidingWindow:
    n = counts.listed
    if keys.arch == "lfm2":  # every attention layer where the file gives a window
        n_swa = keys.count("attention.sliding_window")
        flags = tuple(n_swa > 0 and not recurrent for recurrent in state.layers)
        return SlidingWindow(n_swa, False, flags)
    window = sliding_window(keys.header, n)
    flags = window.layers * (counts.everything // n) if n else ()
    return SlidingWindow(window.n_swa, window.chunked, flags + (False,) * (counts.everything - len(flags)))


def _indexed_layers(keys: _Keys, counts: _Counts) -> tuple[bool, ...]:
    """Layers that keep keys of a sparse-attention indexer."""
    n, arch = counts.everything, keys.arch
    if arch not in _INDEXED or not keys.count("attention.indexer.key_length"):
        return (False,) * n
    if arch == "minimax-m3":
        return tuple(il >= keys.count("leading_dense_block_count") for il in range(n))
    if arch in ("deepseek32", "qwen4exp"):
        return (True,) * n
    types = keys.each("attention.indexer.types", counts.trunk, ())
    if types:
        return tuple(bool(t) for t in types) + (False,) * (n - len(types))
    if (
        arch == "glm-dsa" and keys.count("context_length") >= 1 << 20
    ):  # GLM 5.2, GLM_5_2_DEFAULT_INDEXER_TYPES
        return tuple(il < 2 or il % 4 == 2 for il in range(n))
    return (True,) * n


def _layers(
    keys: _Keys, counts: _Counts, shapes: tuple[LayerShape, ...]
) -> tuple[tuple[LayerFacts, ...], int]:
    n = counts.everything
    zeros = (0,) * counts.listed
    heads = _looped(keys.each("attention.head_count", counts.listed, zeros), counts)
    kv_heads = _looped(keys.each("attention.head_count_kv", counts.listed, heads[: counts.listed]), counts)
    n_embd = keys.count("embedding_length")
    first = heads[0] if heads else 0  # models without attention have no heads at all
    full = tuple(
        keys.count(f"attention.{part}_length", n_embd // first) if first else 0 for part in ("key", "value")
    )
    swa = tuple(
        keys.count(f"attention.{part}_length_swa", wide)
        for part, wide in zip(("key", "value"), full, strict=True)
    )
    if keys.arch in ("glm5-next", "kimi-k3"):
        full = (full[0], keys.count("attention.kv_lora_rank"))
    feed_forward = _looped(keys.each("feed_forward_length", counts.listed, zeros), counts)
    state = recurrent_state(keys.header, kv_heads, feed_forward, counts.trunk, heads, n_embd, full[0])
    window = _window(keys, counts, state)
    mla = keys.count("attention.key_length_mla") > 0 and keys.count("attention.value_length_mla") > 0
    last_kept = _kept_from_start(keys, n)
    indexed = _indexed_layers(keys, counts)
    index_size = keys.count("attention.indexer.key_length")
    layers, widest = [], 0
    for il in range(n):
        head_k, head_v = swa if window.layers[il] else full
        widest = max(widest, head_v * kv_heads[il])
        if il >= counts.trunk:
            continue
        kept = state.attends[il] and il < last_kept
        index = index_size if indexed[il] and kept else 0
        pooled = 3 if keys.count("attention.indexer.kpool") else 1
        layers.append(
            LayerFacts(
                windowed=window.layers[il],
                k_width=head_k * kv_heads[il] if kept else 0,
                v_width=0 if mla or not kept else head_v * kv_heads[il],
                index_k=index * (pooled if keys.arch in _NO_V_INDEX else 1),
                index_v=head_v if index and not mla and keys.arch not in _NO_V_INDEX else 0,
                state=state.numbers if state.layers[il] else 0,
                head_k=head_k,
                head_v=head_v,
                heads=heads[il],
                kv_heads=kv_heads[il],
                shape=shapes[il % counts.listed],
            )
        )
    return tuple(layers), widest


def memory_facts(header: GgufHeader, parts: Iterable[GgufHeader] = ()) -> MemoryFacts:
    """The facts of a model; `parts` are the headers of the further files of a split set."""
    keys = _Keys(header)
    counts = _layer_counts(keys)
    tensors = (*header.tensors, *(t for part in parts for t in part.tensors))
    shapes = layer_shapes(header, tensors, counts.listed)
    layers, v_padded = _layers(keys, counts, shapes)
    tokens = header.array("tokenizer.ggml.tokens")
    window = sliding_window(header, counts.listed)
    names = {t.name for t in tensors}
    tied = "output.weight" not in names and "token_embd.weight" in names
    n_swa = keys.count("attention.sliding_window") if keys.arch == "lfm2" else window.n_swa
    return MemoryFacts(
        arch=keys.arch,
        n_layer_all=counts.everything,
        n_embd=keys.count("embedding_length"),
        n_vocab=len(tokens) if tokens is not None else keys.count("vocab_size"),
        n_ctx_train=keys.count("context_length"),
        n_swa=n_swa if any(layer.windowed for layer in layers) else 0,
        v_padded=v_padded,
        mla=keys.count("attention.key_length_mla") > 0 and keys.count("attention.value_length_mla") > 0,
        layers=layers,
        weights=weight_table(keys.arch, tensors, counts.everything, counts.trunk),
        tied=tied,
        tied_first=keys.arch in ("gemma3n", "gemma4"),
        per_layer_width=next((t.dims[0] for t in tensors if t.name == "per_layer_token_embd.weight"), 0),
        streams=_STREAMS.get(keys.arch, 1),
        unmodelled=f"{keys.arch} has caches of a kind of its own" if keys.arch in _OWN_CACHES else "",
    )
