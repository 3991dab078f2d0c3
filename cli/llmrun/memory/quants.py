"""Bits a weight of the common quantizations, and what a model would weigh in another one.

The mixed types give some tensors more bits than others, so the mean depends on the model a little; the
figures are those of an 8B model (llama.cpp, tools/quantize/README.md).
"""

from __future__ import annotations

from dataclasses import replace

from llmrun.gguf.hparams import MemoryFacts

QUANT_BITS: dict[str, float] = {
    "F32": 32.0,
    "BF16": 16.0,
    "F16": 16.0,
    "Q8_0": 8.5008,
    "Q6_K": 6.5633,
    "Q5_K_M": 5.7036,
    "Q5_K_S": 5.5704,
    "Q4_K_M": 4.8944,
    "Q4_K_S": 4.6672,
    "IQ4_XS": 4.4597,
    "Q3_K_L": 4.2979,
    "Q3_K_M": 3.9960,
    "Q3_K_S": 3.6429,
    "Q2_K": 3.1593,
    "IQ2_M": 2.9294,
    "IQ2_XS": 2.5882,
    "IQ1_M": 2.1460,
}
"""From large to small."""


def bits_per_weight(facts: MemoryFacts) -> float:
    """Mean bits a weight of the matrices of a model; 0 where it has none."""
    matrices = [w for w in facts.weights if w.matrix]
    n_params = sum(w.n_params for w in matrices)
    return 8 * sum(w.size_bytes for w in matrices) / n_params if n_params else 0.0


def requantized(facts: MemoryFacts, bits: float) -> MemoryFacts | None:
    """The model with matrices of `bits` bits a weight on the mean; None where that is not smaller."""
    if bits >= bits_per_weight(facts) * 0.99:
        return None
    weights = tuple(
        replace(w, size_bytes=min(w.size_bytes, int(w.n_params * bits / 8))) if w.matrix else w
        for w in facts.weights
    )
    return replace(facts, weights=weights)
