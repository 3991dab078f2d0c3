"""A walk through the graph on one device: what is taken from its compute buffer, and what it borrows.

Where a GPU computes with weights or caches that lie on the CPU, copies of them share its buffer; where the
CPU computes for a layer of a GPU, inputs and results are copied the other way. Source:
ggml_backend_sched_split_graph in ggml/src/ggml-backend.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells, is_quantized
from llmrun.memory.plan import MemoryPlan

TURNED_HEAD_STEP = 64
_MASK_BYTES = {"on": 2, "off": 4}
_INDEX_BYTES = 8


def is_turned(type_name: str, head_size: int) -> bool:
    """True where the engine turns rows so that no number stands out, before it rounds them.

    Source: attn_rot_k and attn_rot_v in src/llama-kv-cache.cpp.
    """
    return is_quantized(type_name) and head_size % TURNED_HEAD_STEP == 0


@dataclass(slots=True)
class Walk:
    """A walk through the layers on one device.

    `masks`: mask and cache indices by kind of layer, in `copies`, like `positions`. `host`: the CPU's buffer,
    `lent_masks` what is free there once it is copied here. `helper`: the buffer of the device that computes
    parts of layers for this one.

    For the layer at hand: `borrowed` sizes of weights that lie on the CPU and are multiplied with here, by
    name, `last_borrowed` the last of them; `fed_by_helper` True where the helper computes its experts or
    dense inner layer; `coming` the kinds of the layers after that pause, up to the next, and `output_coming`
    whether the last is one of them; `cache_apart` True where its K/V lie on another device.
    """

    facts: MemoryFacts
    plan: MemoryPlan
    cells: Cells
    arena: Arena
    tokens: int
    copies: int = 1
    masks: dict[bool, list[Block]] = field(default_factory=dict)
    positions: list[Block] = field(default_factory=list)
    host: Arena | None = None
    lent_masks: dict[bool, list[Block]] = field(default_factory=dict)
    helper: Arena | None = None
    borrowed: Mapping[str, int] = field(default_factory=dict)
    last_borrowed: str = ""
    fed_by_helper: bool = False
    coming: frozenset[bool] = frozenset()
    output_coming: bool = False
    cache_apart: bool = False

    def numbers(self, width: int) -> Block:
        """A tensor of `width` f32 numbers a token."""
        return self.arena.take(F32_BYTES * width * self.tokens)

    def states(self, count: int, width: int = 0) -> Block:
        """`count` numbers for each sequence, and `width` for each token."""
        return self.arena.take(F32_BYTES * (count * max(1, self.plan.n_seq) + width * self.tokens))

    def product(self, weight: str, width: int) -> Block:
        """The result of a multiplication with a weight, of which a copy is here meanwhile if it is lent.

        The copy of a layer's last one comes with what the next layers read.
        """
        copy = self._borrow(weight)
        result = self.numbers(width)
        self.arena.give(copy)
        self.arena.give(self._borrow(f"{weight}.bias"))
        return result

    def _borrow(self, weight: str) -> Block:
        copy = self.arena.take(self.borrowed.get(weight, 0))
        if weight == self.last_borrowed:
            self.take_coming()
        return copy

    def take_coming(self) -> None:
        """What the layers up to the next pause read: masks, and which positions have logits."""
        for windowed in sorted(self.coming):
            self.take_mask(windowed)
        if self.output_coming:
            self.arena.take(F32_BYTES * max(1, self.plan.n_seq))

    def kept(self, windowed: bool) -> int:
        """Cells of one stream of a cache."""
        return self.cells.window if windowed else self.cells.full

    def take_mask(self, windowed: bool) -> None:
        """Mask, and indices of a cache that is here, for one kind of layer, if they are not here yet."""
        if windowed in self.masks:
            return
        v_rows = 1 if self.plan.flash_attn == "on" else max(1, self.facts.v_padded)
        indices = (0, 0) if self.cache_apart else (_INDEX_BYTES, _INDEX_BYTES * v_rows)
        sizes = (
            *(size * self.tokens for size in indices),
            _MASK_BYTES[self.plan.flash_attn] * self.kept(windowed) * self.tokens,
            *self._turning_matrices(windowed),
        )
        self.masks[windowed] = [self.arena.take(size) for size in sizes for _ in range(self.copies)]
        if self.host is not None:
            self.host.give(*self.lent_masks.pop(windowed, ()))

    def _turning_matrices(self, windowed: bool) -> list[int]:
        """Bytes of matrices that turn the rows of quantized caches: for K the largest power of two in a head,
        for V 64."""
        layer = next((la for la in self.facts.layers if la.k_width and la.windowed == windowed), None)
        if layer is None:
            return []
        sizes = []
        if is_turned(self.plan.type_k, layer.head_k):
            sizes.append(layer.head_k & -layer.head_k)
        if is_turned(self.plan.type_v, layer.head_v):
            sizes.append(TURNED_HEAD_STEP)
        return [F32_BYTES * size * size for size in sizes]
