"""A walk through the graph on one device: what is taken from its compute buffer, and what it borrows.

Where a GPU computes with weights or caches that lie on the CPU, copies of them share its buffer; where the
CPU computes for a layer of a GPU, inputs and results are copied the other way. Source:
ggml_backend_sched_split_graph in ggml/src/ggml-backend.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.arena import Arena, Block
from llmrun.memory.cache import F32_BYTES, Cells, is_quantized
from llmrun.memory.plan import MemoryPlan

TURNED_HEAD_STEP = 64
_MASK_BYTES = {"on": 2, "off": 4}
_INDEX_BYTES = 8


Read = Literal["positions", "k", "v"]
"""A small input: positions of the tokens, or the matrix that turns rows of K or V."""

TakenOver = Literal["", "attention", "result"]
"""What of a GPU's layer the CPU does by hand: nothing, its attention, or only to put the result in order."""

Masks = dict[tuple[bool, str], list[Block]]
"""What attention reads by kind of layer (True for a window): "mask" with indices, matrices "k" and "v"."""


def is_turned(type_name: str, head_size: int) -> bool:
    """True where the engine turns rows so that no number stands out, before it rounds them.

    Source: attn_rot_k and attn_rot_v in src/llama-kv-cache.cpp.
    """
    return is_quantized(type_name) and head_size % TURNED_HEAD_STEP == 0


@dataclass(slots=True)
class Walk:
    """A walk through the layers on one device.

    `masks`: what attention reads by kind of layer, in `copies`, like `positions`. `host`: the CPU's buffer,
    `lent_masks` what is free there once it is copied here. `helper`: the buffer of the device that computes
    parts of layers for this one.

    For the layer at hand: `windowed` its kind; `borrowed` sizes of weights that lie on the CPU and are
    multiplied with here, by name, `last_borrowed` the last of them; `fed_by_helper` True where the helper
    computes its experts or dense inner layer; `coming` the kinds of the layers after that pause, up to the
    next, that have their cache here, `turning_coming` of those with a cache elsewhere, `output_coming`
    whether the last layer is one of them; `cache_apart` True where its K/V lie on another device,
    `taken_over` what the CPU therefore does; `outputs_with_cache` where copies of those come with which
    positions have logits; `last_of_kind` True where no later layer reads its mask.
    """

    facts: MemoryFacts
    plan: MemoryPlan
    cells: Cells
    arena: Arena
    tokens: int
    copies: int = 1
    masks: Masks = field(default_factory=dict)
    positions: list[Block] = field(default_factory=list)
    host: Arena | None = None
    lent_masks: Masks = field(default_factory=dict)
    helper: Arena | None = None
    windowed: bool = False
    borrowed: Mapping[str, int] = field(default_factory=dict)
    last_borrowed: str = ""
    fed_by_helper: bool = False
    coming: frozenset[bool] = frozenset()
    turning_coming: frozenset[bool] = frozenset()
    output_coming: bool = False
    cache_apart: bool = False
    taken_over: TakenOver = ""
    outputs_with_cache: bool = False
    last_of_kind: bool = False

    def numbers(self, width: int) -> Block:
        """A tensor of `width` f32 numbers a token."""
        return self.arena.take(F32_BYTES * width * self.tokens)

    def states(self, count: int, width: int = 0) -> Block:
        """`count` numbers for each sequence, and `width` for each token."""
        return self.arena.take(F32_BYTES * (count * max(1, self.plan.n_seq) + width * self.tokens))

    def product(self, weight: str, width: int, *reads: Read) -> Block:
        """The result of a multiplication with a weight, of which a copy is here meanwhile if it is lent.

        `reads` come with it, or with its bias where that is lent, too. The copy of a layer's last weight
        comes with what the next layers read.
        """
        copy = self.borrow(weight)
        bias = f"{weight}.bias"
        if bias not in self.borrowed:
            self.take_read(*reads)
        result = self.numbers(width)
        self.arena.give(copy)
        copy = self.borrow(bias)
        self.take_read(*reads)
        self.arena.give(copy)
        return result

    def take_read(self, *reads: Read) -> None:
        """Small inputs of the layer at hand, if they are not here yet."""
        for name in reads:
            if name == "positions":
                self.take_positions(1)
            else:
                self._take_turning(name, self.windowed)

    def borrow(self, weight: str) -> Block:
        """The copy of a weight that is lent, empty where it is not."""
        copy = self.arena.take(self.borrowed.get(weight, 0))
        if weight == self.last_borrowed:
            self.take_coming()
        return copy

    def take_coming(self) -> None:
        """What the layers up to the next pause read: masks, and which positions have logits."""
        for windowed in sorted(self.coming):
            self.take_mask(windowed)
        for windowed in sorted(self.turning_coming):
            self._take_turning("k", windowed)
            self._take_turning("v", windowed)
        if self.output_coming:
            self.take_outputs()

    def take_outputs(self) -> None:
        """Which positions have logits."""
        self.arena.take(F32_BYTES * max(1, self.plan.n_seq))

    def kept(self, windowed: bool) -> int:
        """Cells of one stream of a cache."""
        return self.cells.window if windowed else self.cells.full

    def take_positions(self, count: int) -> None:
        """`count` numbers a token, if they are not here yet."""
        if not self.positions:
            self.positions = self._copies(F32_BYTES * self.tokens for _ in range(count))

    def take_attended(self, windowed: bool) -> None:
        """What attention reads beside the cache, and what comes with copies of that."""
        self.take_mask(windowed)
        if self.outputs_with_cache:
            self.take_outputs()
        if self.cache_apart and not self.fed_by_helper and not self.borrowed:
            self.take_coming()

    def take_mask(self, windowed: bool) -> None:
        """Mask, and indices of a cache that is here, for one kind of layer, if they are not here yet."""
        if (windowed, "mask") not in self.masks:
            v_rows = 1 if self.plan.flash_attn == "on" else max(1, self.facts.v_padded)
            indices = () if self.cache_apart else (_INDEX_BYTES, _INDEX_BYTES * v_rows)
            mask = _MASK_BYTES[self.plan.flash_attn] * self.kept(windowed)
            sizes = (size * self.tokens for size in (*indices, mask))
            self.masks[windowed, "mask"] = self._copies(sizes)
        self._take_turning("k", windowed)
        self._take_turning("v", windowed)
        if self.host is not None:
            for key in [key for key in self.lent_masks if key[0] == windowed]:
                self.host.give(*self.lent_masks.pop(key))

    def give_mask(self, windowed: bool) -> None:
        """Give the mask of a kind back after its last reader, and positions with the last mask."""
        if not self.last_of_kind:
            return
        for key in [key for key in self.masks if key[0] == windowed]:
            self.arena.give(*self.masks.pop(key))
        if not self.masks:
            self.arena.give(*self.positions)
            self.positions = []

    def _copies(self, sizes: Iterable[int]) -> list[Block]:
        return [self.arena.take(size) for size in sizes for _ in range(self.copies)]

    def _take_turning(self, part: Literal["k", "v"], windowed: bool) -> None:
        """What turns rows of a quantized cache: the largest power of two in a head for K, 64 for V."""
        if (windowed, part) in self.masks:
            return
        layer = next((la for la in self.facts.layers if la.k_width and la.windowed == windowed), None)
        if layer is None:
            return
        head, type_name = (
            (layer.head_k, self.plan.type_k) if part == "k" else (layer.head_v, self.plan.type_v)
        )
        if is_turned(type_name, head):
            size = head & -head if part == "k" else TURNED_HEAD_STEP
            self.masks[windowed, part] = self._copies([F32_BYTES * size * size])
