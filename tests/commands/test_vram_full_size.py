"""`llmrun vram` on headers of full-size models: holes stand for the weights, so that files cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archs import FULL_SIZE, write_full_size
from tests.support.cli import Cli

EXACT = ("weights_bytes", "kv_bytes", "recurrent_bytes", "output_bytes")
CONTEXTS = (("-c", "32768"), ("-c", "65536", "-np", "4", "--no-kv-unified", "--kv-type", "q8_0", "-fa", "on"))


@pytest.mark.parametrize(("name", "words"), list(zip(FULL_SIZE, CONTEXTS * 3, strict=True)))
def test_formula_and_engine_agree(cli: Cli, tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    """By the commands that users type, which only take a file with a vocabulary."""
    path = write_full_size(tmp_path / "m.gguf", name, vocabulary=True)
    found = [cli("vram", path, "--json", *words, *more) for more in ((), ("--exact",))]
    assert [ended.status for ended in found] == [0, 0], [ended.err for ended in found]
    formula, engine = (ended.document for ended in found)
    assert (formula["method"], engine["method"]) == ("formula", "engine")
    sizes = [{key: document["totals"][key] for key in EXACT} for document in (formula, engine)]
    assert sizes[0] == sizes[1]
    assert sizes[0]["kv_bytes"] > 0
    computes = [document["totals"]["compute_bytes"] for document in (formula, engine)]
    assert computes[0] == pytest.approx(computes[1], rel=0.1)
