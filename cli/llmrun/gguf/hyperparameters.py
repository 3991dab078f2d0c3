"""Hyperparameters as the engine takes them, and their words in messages.

What a file leaves out the engine fills in: head sizes from the embedding and the number of heads, the rotated
part of a head from its size, and what holds for window layers from what holds for all (load_hparams in
llama.cpp, src/llama-model.cpp).
"""

from __future__ import annotations

from llmrun.gguf.facts import ModelFacts
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.layers import per_layer
from llmrun.gguf.recurrent import State, recurrent_state


class Hyperparameters:
    """Reads `<arch>.<suffix>` with the engine's defaults; `windows` tells the window layers."""

    def __init__(self, header: GgufHeader, facts: ModelFacts) -> None:
        self.header, self.facts, self.arch = header, facts, facts.arch
        self.layers = facts.n_layer
        self.heads = facts.n_head[0] if facts.n_head else 0
        self.windows = facts.window.layers
        default = facts.n_embd // self.heads if self.heads else 0
        self._defaults = {"attention.key_length": default, "attention.value_length": default}
        self._defaults["rope.dimension_count"] = self.number("attention.key_length")
        for full in tuple(self._defaults):
            self._defaults[f"{full}_swa"] = self.number(full)

    def has(self, suffix: str) -> bool:
        """Whether the file gives the key."""
        return f"{self.arch}.{suffix}" in self.header.metadata

    def number(self, suffix: str) -> int:
        """The value of `<arch>.<suffix>`, or what the engine takes where it is missing."""
        value = self.header.integer(f"{self.arch}.{suffix}")
        return self._defaults.get(suffix, 0) if value is None else value

    def said(self, suffix: str) -> str:
        """The key and its value, for a message."""
        default = "" if self.has(suffix) else " by default"
        return f"{self.arch}.{suffix} is {self.number(suffix):,}{default}"

    def of_first_layer(self, suffix: str) -> str:
        """`suffix` or its counterpart for window layers, whichever holds for the first layer."""
        return f"{suffix}_swa" if self.windows and self.windows[0] else suffix

    def must_equal(self, suffix: str, expected: str, value: int) -> str | None:
        """None, or that `suffix` is not `value`, which `expected` describes."""
        if self.number(suffix) == value:
            return None
        return f"{self.said(suffix)}, not {value:,}: {expected}"

    def must_divide(self, suffix: str, by: str) -> str | None:
        """None, or that `suffix` is no multiple of `by`."""
        if self.number(by) > 0 and self.number(suffix) % self.number(by) == 0:
            return None
        return f"{self.said(suffix)}, no multiple of {self.said(by)}"

    def states(self) -> State:
        """Which layers keep a recurrent state and which attend; the size of the state is left out."""
        nothing = (0,) * self.layers
        feed_forward = per_layer(self.header, f"{self.arch}.feed_forward_length", self.layers, nothing)
        trunk = self.layers - self.number("nextn_predict_layers")
        return recurrent_state(self.header, self.facts.n_head_kv, feed_forward, trunk, (), 0, 0)
