"""The big tensors of layers that keep a state instead of a cache, in the order the engine computes them.

Source: llama.cpp, src/models/mamba-base.cpp, src/models/lfm2.cpp, src/models/qwen3next.cpp.
"""

from __future__ import annotations

from llmrun.gguf.hparams import LayerFacts
from llmrun.memory.arena import Block
from llmrun.memory.cache import F32_BYTES
from llmrun.memory.walk import Walk


def _state_space(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Mamba: projection, convolution over past inputs, selective scan, gate (src/models/mamba-base.cpp)."""
    arena, mixer = walk.arena, layer.shape.mixer
    width = mixer.inner + mixer.grouped
    past = walk.states((mixer.kernel - 1) * width)
    projected = walk.product("ssm_in", mixer.projected)
    arena.give(norm)
    joined = walk.states((mixer.kernel - 1) * width, width)
    arena.give(past)
    conv = walk.numbers(width)
    arena.give(joined)
    selective = walk.numbers(mixer.selective)
    step = walk.numbers(mixer.inner if mixer.selective else mixer.heads)
    scan = walk.states(layer.state, mixer.inner)
    arena.give(selective, step)
    gate = walk.numbers(mixer.inner)
    arena.give(projected)
    skipped = walk.numbers(mixer.inner)
    arena.give(conv, scan)
    out = walk.numbers(mixer.inner)
    arena.give(gate, skipped)
    back = walk.product("ssm_out", walk.facts.n_embd)
    arena.give(out)
    return back


def _short_convolution(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Gated convolution over a few tokens (src/models/lfm2.cpp)."""
    arena, n_embd = walk.arena, walk.facts.n_embd
    projected = walk.numbers(3 * n_embd)
    arena.give(norm)
    past, gated = walk.states(layer.state), walk.numbers(n_embd)
    joined = walk.states(layer.state, n_embd)
    arena.give(past, gated)
    conv = walk.numbers(n_embd)
    arena.give(joined, projected)
    back = walk.numbers(n_embd)
    arena.give(conv)
    return back


def _delta_net(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Gated delta net: convolution over past inputs, delta rule on a state, gate (src/models/qwen*.cpp).

    A state that lies elsewhere is copied here when it is needed, which is later where weights are lent.
    """
    arena, mixer = walk.arena, layer.shape.mixer
    width, kept = mixer.inner + mixer.grouped, mixer.kernel - 1
    size = layer.state - kept * width
    lent = walk.borrow("attn_qkv")
    past = walk.states(kept * width)
    projected = walk.numbers(width)
    arena.give(lent)
    joined = walk.states(kept * width, width)
    arena.give(past, projected)
    late = "ssm_conv1d" in walk.borrowed
    state = [] if late else [walk.states(size)]
    conv = walk.product("ssm_conv1d", width)
    arena.give(joined)
    both = [_normed_head(walk, mixer.grouped // 2, mixer.repeated) for _ in "qk"]
    steering = walk.product("ssm_ba", 2 * mixer.heads)
    gate = walk.numbers(mixer.heads)
    state += [walk.states(size)] if late else []
    step = walk.numbers(mixer.heads)
    arena.give(steering)
    out = walk.states(size, mixer.inner)
    arena.give(*both, conv, gate, step, *state)
    normed = walk.numbers(mixer.inner)
    arena.give(out)
    plain = walk.product("attn_gate", mixer.inner)
    arena.give(norm)
    act = walk.numbers(mixer.inner)
    arena.give(plain, act)
    back = walk.product("ssm_out", walk.facts.n_embd)
    arena.give(normed)
    return back


def _normed_head(walk: Walk, width: int, repeated: int) -> Block:
    """Queries or keys of length one, repeated for every head that has a state where the model does so."""
    normed = walk.numbers(width)
    if not repeated:
        return normed
    result = walk.numbers(repeated)
    walk.arena.give(normed)
    return result


def _plain_mixer(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """Any other recurrent layer, roughly: projection, convolution, scan, projection back."""
    arena = walk.arena
    width = max(layer.shape.mixer.projected, 2 * walk.facts.n_embd)
    projected = walk.numbers(width)
    arena.give(norm)
    conv, scan = walk.numbers(width), walk.numbers(width)
    state = walk.states(layer.state)
    arena.give(conv, projected)
    back = walk.product("ssm_out", walk.facts.n_embd)
    arena.give(scan, state)
    return back


_MIXERS = {
    "state_space": _state_space,
    "short_convolution": _short_convolution,
    "delta_net": _delta_net,
}


def mixed_by_state(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """What a layer's recurrent part adds to the residual; `norm` is what it reads.

    A state on the CPU takes its next inputs from a copy of what is convolved.
    """
    mixer = layer.shape.mixer
    if walk.cache_apart and walk.host is not None:
        width, past = mixer.inner + mixer.grouped, (mixer.kernel - 1) * max(1, walk.plan.n_seq)
        walk.host.give(walk.host.take(F32_BYTES * width * (walk.tokens + past)))
    return _MIXERS.get(mixer.kind, _plain_mixer)(walk, layer, norm)
