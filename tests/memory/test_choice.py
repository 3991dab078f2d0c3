"""Which quantization is marked, and what one header says of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.choice import LEAST_BITS, MOST_BITS, QuantFit, Where, best, quant_fit, resized
from llmrun.memory.plan import DeviceInfo, MemoryPlan
from llmrun.units import GIB

from tests.support.archs import write_full_size
from tests.support.gguf_writer import TensorType

QUANTS = {"IQ2_M": 2.9, "Q3_K_M": 4.0, "Q4_K_M": 4.9, "Q5_K_M": 5.7, "Q6_K": 6.6, "Q8_0": 8.5, "F16": 16.0}


def fits(**where: Where) -> list[QuantFit]:
    """Every quantization of a model of 8 billion, in main memory unless said otherwise."""
    return [QuantFit(q, bits, int(bits * 10**9), where.get(q, "cpu")) for q, bits in QUANTS.items()]


def taken(found: Sequence[QuantFit], preferred: str = "") -> str | None:
    index = best(found, preferred)
    return None if index is None else found[index].quant


ON_GPU: dict[str, Where] = dict.fromkeys(QUANTS, "gpu")


@pytest.mark.parametrize(
    ("found", "preferred", "quant"),
    [
        (fits(**ON_GPU), "", "Q8_0"),
        (fits(**ON_GPU), "q6_k", "Q6_K"),
        (fits(**ON_GPU | {"Q8_0": "part", "F16": "part"}), "", "Q6_K"),
        (fits(IQ2_M="gpu", Q3_K_M="part", Q4_K_M="part"), "", "Q4_K_M"),
        (fits(), "", "Q4_K_M"),
        (fits(), "Q9", "Q4_K_M"),
        (fits(Q4_K_M="none"), "Q4_K_M", "Q3_K_M"),
        (fits(Q4_K_M="none", Q5_K_M="none", Q6_K="none", Q8_0="none", F16="none"), "", "Q3_K_M"),
        (fits()[3:], "", "Q5_K_M"),
        ([QuantFit("F16", 16.0, 1, "gpu")], "", "F16"),
        ([QuantFit("", 0.0, 1, "cpu")], "", ""),
        ([QuantFit("Q4_K_M", 4.9, 1, "none")], "", None),
        ([], "", None),
    ],
)
def test_the_rule_of_choice(found: Sequence[QuantFit], preferred: str, quant: str | None) -> None:
    assert taken(found, preferred) == quant


@given(st.lists(st.sampled_from(["gpu", "part", "cpu", "none"]), min_size=7, max_size=7))
def test_what_is_marked_fits_and_nothing_better_is_passed_over(where: list[Where]) -> None:
    found = fits(**dict(zip(QUANTS, where, strict=True)))
    index = best(found)
    if index is None:
        assert set(where) == {"none"}
        return
    assert found[index].where != "none"
    whole = [fit for fit in found if fit.where == "gpu" and LEAST_BITS <= fit.bits <= MOST_BITS]
    assert not whole or found[index] is whole[-1]


@pytest.mark.parametrize("name", ["8B dense", "30B MoE", "80B hybrid"])
@pytest.mark.parametrize("other", [TensorType.Q8_0, TensorType.Q2_K])
def test_another_quantization_weighs_as_its_own_header_says(
    tmp_path: Path, name: str, other: TensorType
) -> None:
    facts = memory_facts(read_header(write_full_size(tmp_path / "a.gguf", name)))
    theirs = memory_facts(read_header(write_full_size(tmp_path / "b.gguf", name, weights=other)))
    guessed = resized(facts, sum(weight.size_bytes for weight in theirs.weights))
    plan = MemoryPlan(n_ctx=4096, gpu_layers=facts.n_slots)
    for memory in (24 * GIB, 400 * GIB):
        devices = (
            DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB),
            DeviceInfo("GPU", "gpu", memory, memory),
        )
        ours = quant_fit("", 0, guessed, plan, devices, GIB)
        right = quant_fit("", 0, theirs, plan, devices, GIB)
        assert ours.sum_bytes == pytest.approx(right.sum_bytes, rel=0.03)
        assert ours.where == right.where


def test_the_same_size_is_the_same_model(tmp_path: Path) -> None:
    facts = memory_facts(read_header(write_full_size(tmp_path / "a.gguf", "8B dense")))
    assert resized(facts, sum(weight.size_bytes for weight in facts.weights)) == facts
