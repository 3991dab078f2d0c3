"""Asking devices for flash attention with the engine's own operation."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from llmrun.engine import flash
from llmrun.engine.bindings import native_function
from llmrun.engine.flash import AttentionShape, flash_attention_types
from llmrun.engine.kv_types import GGML_TYPES
from llmrun.engine.probe.sizes import probe_flash_attention
from llmrun.errors import UsageError

from tests.support.rpc import rpc_server

PAIRS = [(k, v) for k in GGML_TYPES for v in GGML_TYPES]
SHAPES = [AttentionShape(9, 3, 64, 64), AttentionShape(128, 1, 576, 512)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rpc_server() as address:
        yield address


def test_the_cpu_runs_all_types() -> None:
    assert flash_attention_types(["CPU"], SHAPES, PAIRS) == {"CPU": PAIRS}


def test_a_server_says_yes_to_all(server: str) -> None:
    found = probe_flash_attention(["CPU", "RPC0"], SHAPES, PAIRS[:3], rpc=[server])
    assert found == {"CPU": PAIRS[:3], "RPC0": PAIRS[:3]}


def test_an_unknown_type() -> None:
    with pytest.raises(UsageError, match="q2"):
        flash_attention_types(["CPU"], SHAPES, [("f16", "q2")])


class Tensor(ctypes.Structure):
    """The beginning of ggml_tensor (ggml.h)."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


def test_a_device_that_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the operation with the types and sizes in question."""
    seen = []
    real = native_function

    def supports(_device: int, node: int) -> bool:
        result = Tensor.from_address(node)
        seen.append(tuple(result.ne))
        return len(seen) % 4 != 2

    def function(name: str, *signature: Any) -> Any:
        return supports if name == "ggml_backend_dev_supports_op" else real(name, *signature)

    monkeypatch.setattr(flash, "native_function", function)
    found = flash_attention_types(["CPU"], SHAPES[:1], [("q5_1", "q5_1"), ("f16", "f16")])
    assert found == {"CPU": [("f16", "f16")]}  # the second question, about a decode step, was denied
    assert seen == [(64, 9, 512, 1), (64, 9, 1, 1)] * 2
