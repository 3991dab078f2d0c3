from __future__ import annotations

import re

import pytest

from llmrun.app.memory import offload
from llmrun.app.memory.host_memory import HostMemory
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.bindings import Device
from llmrun.errors import DoesNotFit
from llmrun.gguf.check import check_runnable
from llmrun.gguf.reader import read_header
from llmrun.units import MIB

from tests.support.models import smollm2_path

# SmolLM2 at 8,192 tokens: 180 MiB of K/V at f16, half that much and a little more at q8_0
CPU = Device("CPU", "a processor", "cpu", 1, 1)
CONTEXT = ContextParams(n_ctx=8192)


def check(
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    context: ContextParams,
    space_bytes: int | None = None,
    **model: object,
) -> None:
    path = smollm2_path()
    header = read_header(path)
    monkeypatch.setattr(offload, "host_memory", lambda: HostMemory(free_bytes, free_bytes, space_bytes))
    monkeypatch.setattr(offload, "engine_devices", lambda: (CPU,))
    subject = offload.Subject((header,), check_runnable(header, name="x"))
    params = ModelParams(str(path), **model)  # type: ignore[arg-type]
    made = offload.plan_load(subject, params, context, offload.Budget(), ctx_fixed=False)
    assert made == offload.LoadPlan(params, context)


@pytest.mark.parametrize("free_mib", [100, 179, 195])
def test_a_context_beyond_the_free_memory_is_refused_with_what_would_fit(
    monkeypatch: pytest.MonkeyPatch, free_mib: int
) -> None:
    with pytest.raises(DoesNotFit) as refused:
        check(monkeypatch, free_mib * MIB, CONTEXT)
    assert "8,192 tokens" in refused.value.message
    n_ctx = int(re.findall(r"-c (\d+)", refused.value.hint)[0])
    assert 0 < n_ctx < 8192
    with monkeypatch.context() as patch:
        check(patch, free_mib * MIB, ContextParams(n_ctx=n_ctx))


@pytest.mark.parametrize("free_mib", [210, 1000, 100_000])
def test_what_fits_is_let_through(monkeypatch: pytest.MonkeyPatch, free_mib: int) -> None:
    check(monkeypatch, free_mib * MIB, CONTEXT)


def test_weights_count_only_where_they_are_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, 250 * MIB, CONTEXT)
    with pytest.raises(DoesNotFit):
        check(monkeypatch, 250 * MIB, CONTEXT, use_mmap=False)


@pytest.mark.parametrize("model", [{}, {"use_mmap": False}])
def test_a_limit_on_the_address_space_counts_mapped_weights(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, object]
) -> None:
    for n_ctx in (8192, 256):  # SmolLM2 has 92 MiB of weights
        context = ContextParams(n_ctx=n_ctx)
        check(monkeypatch, 500 * MIB, context, space_bytes=400 * MIB, **model)
        with pytest.raises(DoesNotFit) as refused:
            check(monkeypatch, 500 * MIB, context, space_bytes=90 * MIB, **model)
        assert "90.0 MiB" in refused.value.message
    with pytest.raises(DoesNotFit) as refused:
        check(monkeypatch, 500 * MIB, CONTEXT, space_bytes=250 * MIB, **model)
    fitting = ContextParams(n_ctx=int(re.findall(r"-c (\d+)", refused.value.hint)[0]))
    check(monkeypatch, 500 * MIB, fitting, space_bytes=250 * MIB, **model)


def test_a_smaller_cache_type_needs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ContextParams(n_ctx=8192, type_k="q8_0", type_v="q8_0", flash_attn="on")
    check(monkeypatch, 150 * MIB, small)
