"""The big tensors of layers that keep a state instead of a cache, in the order the engine computes them.

Source: llama.cpp, src/models/mamba-base.cpp, src/models/lfm2.cpp.
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


_MIXERS = {"state_space": _state_space, "short_convolution": _short_convolution}


def mixed_by_state(walk: Walk, layer: LayerFacts, norm: Block) -> Block:
    """What a layer's recurrent part adds to the residual; `norm` is what it reads.

    A state on the CPU takes its next inputs from a copy of what is convolved.
    """
    mixer = layer.shape.mixer
    if walk.cache_apart and walk.host is not None:
        width, past = mixer.inner + mixer.grouped, (mixer.kernel - 1) * max(1, walk.plan.n_seq)
        walk.host.give(walk.host.take(F32_BYTES * width * (walk.tokens + past)))
    return _MIXERS.get(mixer.kind, _plain_mixer)(walk, layer, norm)
