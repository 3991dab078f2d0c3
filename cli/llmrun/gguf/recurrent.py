"""Which layers keep a recurrent state, and how large it is.

State-space, linear-attention and short-convolution layers keep a state of fixed size instead of K and V:
the last inputs of a convolution (R) and the state proper (S), f32 numbers for each sequence, whatever the
length of the text. Sizes: n_embd_r and n_embd_s in llama.cpp, src/llama-hparams.cpp. Layers: the filters of
create_memory in src/llama-model.cpp and load_arch_hparams in src/models/*.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmrun.gguf.header import GgufHeader

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_STATE_WITHOUT_KV_HEADS = frozenset(
    {
        "jamba",
        "plamo2",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "kimi-linear",
        "kimi-k3",
        "bailingmoe3",
        "glm5-next",
    }
)
# Every n-th layer attends to all positions; n is the default of attention's interval.
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
_WITHOUT_GROUPS = frozenset({"mamba", "jamba"})


@dataclass(frozen=True, slots=True)
class State:
    """Layers with a state, layers that attend, and the f32 numbers of one state (R + S)."""

    layers: tuple[bool, ...]
    attends: tuple[bool, ...]
    numbers: int


def _flags(
    header: GgufHeader, kv_heads: tuple[int, ...], feed_forward: tuple[int, ...], n_trunk: int
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    arch, n = header.arch, len(kv_heads)
    everywhere, nowhere = (True,) * n, (False,) * n
    if arch in RECURRENT:
        return everywhere, nowhere
    if arch == "falcon-h1":
        return everywhere, everywhere
    if arch in _NEMOTRON:
        mixers = tuple(feed_forward[il] == 0 for il in range(n))
        state = tuple(mixers[il] and kv_heads[il] == 0 and il < n_trunk for il in range(n))
        return state, tuple(mixers[il] and not state[il] for il in range(n))
    if arch in _STATE_WITHOUT_KV_HEADS:
        state = tuple(kv_heads[il] == 0 for il in range(n))
        return state, tuple(not flag for flag in state)
    if arch in _INTERVALS:
        state = _by_interval(header, n, n_trunk)
        return state, tuple(not flag for flag in state)
    return nowhere, everywhere


def _by_interval(header: GgufHeader, n: int, n_trunk: int) -> tuple[bool, ...]:
    listed = header.array(f"{header.arch}.attention.recurrent_layers")
    if listed is not None and len(listed) >= n:
        return tuple(bool(flag) for flag in listed[:n])
    interval = header.integer(f"{header.arch}.full_attention_interval") or _INTERVALS[header.arch]
    return tuple(il < n_trunk and (il + 1) % interval != 0 for il in range(n))


def _numbers(header: GgufHeader, heads: int, n_embd: int, head_k: int) -> int:
    arch = header.arch

    def count(suffix: str, default: int = 0) -> int:
        value = header.integer(f"{arch}.{suffix}")
        return default if value is None else max(0, value)

    if arch in RECURRENT and (wkv := count("wkv.head_size")):
        return count("token_shift_count", 2) * n_embd + n_embd * wkv
    conv, inner, state = count("ssm.conv_kernel"), count("ssm.inner_size"), count("ssm.state_size")
    if kernel := count("shortconv.l_cache"):
        return n_embd * (kernel - 1) + state * inner
    if head := count("kda.head_dim"):
        return 3 * (conv - 1 if conv else 3) * heads * head + head * head * heads
    groups = 0 if arch in _WITHOUT_GROUPS else count("ssm.group_count")
    rows = max(0, conv - 1) * (inner + 2 * groups * state)
    return rows + (head_k * head_k * heads if arch == "minimax-01" else state * inner)


def recurrent_state(
    header: GgufHeader,
    kv_heads: tuple[int, ...],
    feed_forward: tuple[int, ...],
    n_trunk: int,
    heads: tuple[int, ...],
    n_embd: int,
    head_k: int,
) -> State:
    """The states of a model with one entry a layer in `kv_heads` and `feed_forward`."""
    state, attends = _flags(header, kv_heads, feed_forward, n_trunk)
    numbers = _numbers(header, heads[0] if heads else 0, n_embd, head_k) if any(state) else 0
    return State(state, attends, numbers)
