"""How far a context that was not given a size may grow under the conversation in it.

What grows with the number of cells is the cache of the layers that keep every position, and with it at most
the scratch memory of a step. While the cells move to a larger cache, a copy of them waits in main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from llmrun.app.memory.devices import known_devices
from llmrun.app.memory.host_memory import host_memory
from llmrun.app.memory.offload import Budget
from llmrun.engine.api import EngineFacts
from llmrun.memory.plan import DeviceInfo
from llmrun.memory.use import needed_bytes, room_bytes

_STEP = 256
"""The engine rounds a context up to a multiple of this (llama.cpp, src/llama-context.cpp)."""

_TRIES = 4


def devices_now() -> Sequence[DeviceInfo]:
    """The engine's devices with what is free of each at this moment."""
    from llmrun.engine.bindings import devices

    return known_devices(devices(), host_memory())


@dataclass(frozen=True, slots=True)
class Growth:
    """Decides on sizes within `budget`; `devices` tells what is free now, by default of the engine's own."""

    budget: Budget
    devices: Callable[[], Sequence[DeviceInfo]] | None = None

    def may_grow(self, facts: EngineFacts) -> bool:
        """Whether the model was trained for more than the context holds."""
        return facts.n_ctx_seq < facts.n_ctx_train

    def size_for(self, needed: int, facts: EngineFacts) -> int | None:
        """Cells to grow to, so that a sequence can hold `needed` tokens; None where it cannot grow.

        Doubled as often as needed, so that a conversation that is resumed comes to the size it had; never
        beyond the trained length; less where memory is short, but no less than `needed`, or the
        trained length where that is less.
        """
        now, trained = facts.n_ctx_seq, facts.n_ctx_train
        if needed <= now or not self.may_grow(facts):
            return None
        least = min(_rounded(needed), trained)
        doubled = next(size for doublings in count(1) if (size := now << doublings) >= least)
        most = min(doubled, trained)
        devices = (self.devices or devices_now)()
        sizes = (_rounded(most - (most - least) * tried // _TRIES) for tried in range(_TRIES + 1))
        found = next((size for size in sizes if self._has_room(size / now, facts, devices)), None)
        if found is None:
            return None
        return found if facts.kv_unified else found * facts.n_seq

    def _has_room(self, factor: float, facts: EngineFacts, devices: Sequence[DeviceInfo]) -> bool:
        """Whether every device, the CPU first, has room for a context of `factor` times the size."""
        named = dict(self.budget.named)
        now = [
            replace(d, free_bytes=named[d.name] - _taken(d.name, facts)) if d.name in named else d
            for d in devices
        ]
        added = [int(_growing(d.name, facts) * (factor - 1)) for d in now]
        added[0] += sum(block.size_bytes for block in facts.cache_blocks)
        for index in range(len(now)):
            needed = needed_bytes(now, added, index)
            if needed and needed + self.budget.reserve_bytes > room_bytes(now, index):
                return False
        return True


def _growing(device: str, facts: EngineFacts) -> int:
    """Bytes on a device that grow with the context."""
    blocks = facts.cache_blocks
    cache = sum(b.size_bytes for b in blocks if b.device == device and b.kind == "full")
    return cache + facts.compute_bytes.get(device, 0)


def _taken(device: str, facts: EngineFacts) -> int:
    """Bytes that the model and its context have on a device."""
    cache = sum(block.size_bytes for block in facts.cache_blocks if block.device == device)
    return cache + facts.compute_bytes.get(device, 0) + facts.weights_bytes.get(device, 0)


def _rounded(n_ctx: int) -> int:
    return -(-n_ctx // _STEP) * _STEP
