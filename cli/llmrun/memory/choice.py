"""Which quantization of a model suits a machine: what each would take, and the best of them.

The repository lists how long each file is, and one header tells the rest: layers, K/V and compute are the
same for all, and the matrices of another quantization weigh in proportion to its file. Norms and biases are
kept in full precision in all of them.

The rule of choice follows two facts. Above 8 bits a weight nothing is gained that a reader could tell: the
perplexity of Q8_0 is that of F16 within its error; below about 3.5 the loss grows steeply (llama.cpp,
tools/quantize/README.md). And a decode step reads all active weights once, so that on a CPU speed is
inversely proportional to size, while a model that is wholly on a GPU is quick in any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llmrun.gguf.hparams import MemoryFacts
from llmrun.memory.fit import plan_offload
from llmrun.memory.plan import DeviceInfo, MemoryPlan

Where = Literal["gpu", "part", "cpu", "none"]
"""Wholly on the GPUs, partly there, in main memory, nowhere."""

USUAL = "Q4_K_M"
USUAL_BITS, MOST_BITS, LEAST_BITS = 5.0, 9.0, 3.5


@dataclass(frozen=True, slots=True)
class QuantFit:
    """One quantization on a machine. `sum_bytes` is all memory it takes with the plan's context.

    `bits` are mean bits a weight, 0 where the parameters are not known.
    """

    quant: str
    bits: float
    sum_bytes: int
    where: Where


def resized(facts: MemoryFacts, tensor_bytes: int) -> MemoryFacts:
    """The same model with matrices so much larger or smaller that all weights take `tensor_bytes`."""
    matrices = sum(w.size_bytes for w in facts.weights if w.matrix)
    others = sum(w.size_bytes for w in facts.weights) - matrices
    share = max(0, tensor_bytes - others) / matrices if matrices else 1.0
    weights = (replace(w, size_bytes=int(w.size_bytes * share)) if w.matrix else w for w in facts.weights)
    return replace(facts, weights=tuple(weights))


def quant_fit(
    quant: str,
    bits: float,
    facts: MemoryFacts,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
    reserve_bytes: int,
) -> QuantFit:
    """Where a model of these facts fits with the context of `plan`.

    Raises:
        UsageError: a cache type or a device of the plan does not exist.
    """
    found = plan_offload(facts, plan, devices, reserve_bytes)
    where: Where = "none"
    if found.fits:
        where = {"all": "gpu", "cpu": "cpu"}.get(found.kind, "part")  # type: ignore[assignment]
    return QuantFit(quant, bits, sum(held.sum_bytes for held in found.use.buckets), where)


def best(fits: Sequence[QuantFit], preferred: str = "") -> int | None:
    """Index of the quantization to take; None where none fits.

    `preferred` if it fits; else the largest that is wholly on the GPU, of 3.5 to 9 bits a weight; else, where
    the CPU computes, Q4_K_M, the largest of fewer bits than that has, or the smallest of more.
    """
    here = [index for index, fit in enumerate(fits) if fit.where != "none"]

    def named(quant: str) -> int | None:
        return next((i for i in here if quant and fits[i].quant.upper() == quant.upper()), None)

    on_gpu = [i for i in here if fits[i].where == "gpu" and LEAST_BITS <= fits[i].bits <= MOST_BITS]
    small = [i for i in here if fits[i].bits <= USUAL_BITS]
    if (index := named(preferred)) is not None:
        return index
    if on_gpu:
        return max(on_gpu, key=lambda i: fits[i].sum_bytes)
    if (index := named(USUAL)) is not None:
        return index
    if small:
        return max(small, key=lambda i: fits[i].sum_bytes)
    return min(here, key=lambda i: fits[i].sum_bytes, default=None)
