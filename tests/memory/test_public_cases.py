"""Figures of public logs: K/V caches and recurrent states that people's engines reported.

`public_cases.json` holds hyperparameters, settings and the figures of each log; where they come from is in
it too. Builds from before window caches kept every position, which is `swa_full` here. Logs of builds that
cannot be reproduced are listed in docs/explanation/memory.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import parse_header
from llmrun.memory.cache import cache_sizes, layer_state_bytes
from llmrun.memory.plan import MemoryPlan
from llmrun.units import MIB

from tests.support.gguf_writer import header_bytes

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "public_cases.json").read_text())
ROUNDING_MIB = 0.0051


def facts_of(case: dict[str, Any]) -> MemoryFacts:
    keys = {f"{case['arch']}.{key}": value for key, value in case["keys"].items()}
    return memory_facts(parse_header(header_bytes([("general.architecture", case["arch"]), *keys.items()])))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_logged_sizes(case: dict[str, Any]) -> None:
    facts, plan = facts_of(case), MemoryPlan(**case["plan"])
    sizes = cache_sizes(facts, plan)
    if "total_mib" in case:
        total = sum(size.size_bytes for size in sizes) / MIB
        assert total == pytest.approx(case["total_mib"], abs=ROUNDING_MIB)
    computed = {size.kind: (size.layers, size.size_bytes / MIB) for size in sizes}
    for logged in case.get("caches", []):
        layers, size_mib = computed[logged["kind"]]
        assert layers == logged["layers"]
        assert size_mib == pytest.approx(logged["size_mib"], abs=ROUNDING_MIB)
    if "recurrent_mib" in case:
        copies = 1 + case.get("rollbacks", 0)  # states to go back to when a guessed token is refused
        state = sum(layer_state_bytes(layer, plan) for layer in facts.layers) * copies
        assert state / MIB == pytest.approx(case["recurrent_mib"], abs=2 * ROUNDING_MIB)


def test_every_case_states_a_figure() -> None:
    assert len(CASES) >= 60
    assert all(case.get("caches") or case.get("total_mib") for case in CASES)
    assert sum("recurrent_mib" in case for case in CASES) >= 5
