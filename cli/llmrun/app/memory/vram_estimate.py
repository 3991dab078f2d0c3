"""From a request for an estimate to its report: by the formula, by the engine, or by both and a load.

The engine computes from header-only copies in a temporary folder, so that no weights are read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from llmrun.app.library.find import Best, find_model
from llmrun.app.memory.attention import attention_off_gpus, check_cache_types
from llmrun.app.memory.devices import DeviceProbe, check_present, on_devices, require_gpu, with_named
from llmrun.app.memory.host_memory import host_memory
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.app.memory.vram_request import VramRequest
from llmrun.app.memory.vram_values import buckets, compared, device_uses, grid, longest_ctx
from llmrun.app.plan import context_params, model_params
from llmrun.config.layers import Effective
from llmrun.engine.api import ContextParams, ModelParams
from llmrun.engine.flash import AttentionShape, TypePair
from llmrun.engine.probe.sizes import ProbedSizes, measure_sizes, probe_flash_attention, probe_sizes
from llmrun.errors import DoesNotFit, EngineFailure, ModelNotFound, UsageError
from llmrun.events import ModelInfo, RemoteModel
from llmrun.gguf.architectures import unknown_architecture
from llmrun.gguf.check import check_runnable
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import incomplete, read_header
from llmrun.gguf.sparse import sparse_copy
from llmrun.memory.cache import cells_of
from llmrun.memory.estimate import estimate
from llmrun.memory.explain import explain
from llmrun.memory.fit import plan_offload
from llmrun.memory.numbers import from_numbers
from llmrun.memory.placement import place
from llmrun.memory.plan import DeviceInfo, DeviceReport, MemoryPlan, MemoryReport
from llmrun.memory.use import has_room
from llmrun.memory.ways import ways_out
from llmrun.reports.download import HubAwaited
from llmrun.reports.vram import VerifiedDevice, VramReport, VramSettings


@dataclass(frozen=True, slots=True)
class _Subject:
    """What the estimate is about: facts, and files where there are some."""

    facts: MemoryFacts
    info: ModelInfo
    parts: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    remote: RemoteModel | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    """A subject with everything decided."""

    subject: _Subject
    model: ModelParams
    context: ContextParams
    plan: MemoryPlan
    devices: tuple[DeviceInfo, ...]
    reserve_bytes: int
    auto_layers: bool


def report_of(
    request: VramRequest, settings: Effective, probe: DeviceProbe
) -> Generator[HubAwaited, None, VramReport]:
    """The report; errors as in `vram_report`."""
    named = dict(request.named)
    best = Best(settings, lambda: with_named(probe.result()[0], named), request.reserve_bytes)
    subject = yield from _subject(request, best)
    found, failure = probe.result()
    devices = with_named(found, named)
    if request.exact or request.verify:
        _check_present(found, devices, failure)
    question = _decide(subject, settings, found, devices, request)
    facts, plan = subject.facts, question.plan
    report = formula = estimate(facts, plan, devices, request.reserve_bytes)
    warnings = list(subject.warnings)
    if failure:
        warnings.append(f"the engine cannot be asked for its devices, so the CPU stands alone: {failure}")
    warnings += _misplaced(settings, question)
    warnings += _attention(question, found)
    verified: tuple[VerifiedDevice, ...] = ()
    made = _settings(facts, plan, question.context.flash_attn)
    if request.exact or request.verify:
        sizes = _dry_sizes(question, warnings, needed=request.verify)
        if sizes is not None:
            report, made = _by_engine(formula, sizes, request.reserve_bytes), _made(made, sizes)
        if request.verify and sizes is not None:
            measured = measure_sizes(subject.parts, question.model, question.context)
            verified = compared(formula, sizes, measured)
    elif report.unmodelled:
        warnings.append(f"the formula leaves something out: {report.unmodelled}; --exact asks the engine")
    search = (facts, plan, devices, request.reserve_bytes, question.auto_layers)
    fits = all(device.fits for device in report.devices)
    return VramReport(
        model=subject.info,
        method=report.method,
        settings=made,
        devices=device_uses(report.devices),
        kv_bytes_per_token=report.kv_bytes_per_token,
        verdict=report.verdict,
        max_ctx=report.max_ctx,
        max_ctx_auto=longest_ctx(*search),
        max_gpu_layers=report.max_gpu_layers,
        n_layers=facts.n_slots,
        n_cpu_moe=len(facts.layers) if plan.cpu_moe else plan.n_cpu_moe,
        n_ctx_train=facts.n_ctx_train,
        reserve_bytes=request.reserve_bytes,
        grid=grid(*search),
        remedies=() if fits else ways_out(*search[:4], auto_layers=question.auto_layers),
        warnings=tuple(warnings),
        steps=explain(facts, plan) if request.explain else (),
        verified=verified,
        remote=subject.remote,
    )


def _subject(request: VramRequest, best: Best) -> Generator[HubAwaited, None, _Subject]:
    if request.numbers is not None:
        return _from_numbers(request)
    if request.model is None:
        raise UsageError(
            "no model is named",
            "give MODEL, or its numbers with --layers, --kv-heads, --head-dim and --params",
        )
    found = yield from find_model(request.model, request.cache_dir, best)
    if found.remote is not None and request.verify:
        raise ModelNotFound(
            f"{request.model} is not on this machine, and --verify loads it",
            f"get it: llmrun pull {found.remote.name}",
        )
    model = found.model
    headers = [read_header(path) for path in model.parts]
    file_bytes = sum(header.file_bytes or 0 for header in headers)
    needed_bytes = sum(header.needed_bytes for header in headers)
    checked = check_runnable(replace(headers[0], file_bytes=None), name=model.path.name)
    warnings = [unknown] if (unknown := unknown_architecture(checked.arch)) else []
    if file_bytes < needed_bytes:
        if request.verify:
            raise incomplete(model.path.name, file_bytes, needed_bytes)
        warnings.append(f"file is incomplete: has {file_bytes:,} bytes, needs {needed_bytes:,}")
    info = ModelInfo(
        model.ref, found.place, checked.name, checked.arch, checked.quant, max(file_bytes, needed_bytes)
    )
    return _Subject(memory_facts(headers[0], headers[1:]), info, model.parts, tuple(warnings), found.remote)


def _from_numbers(request: VramRequest) -> _Subject:
    numbers = request.numbers
    assert numbers is not None
    if request.model is not None:
        raise UsageError("a model and the numbers of one are two models", "give one of the two")
    if request.exact or request.verify:
        raise UsageError("the engine cannot open plain numbers", "leave out --exact and --verify")
    facts = from_numbers(
        layers=numbers.layers,
        kv_heads=numbers.kv_heads,
        head_dim=numbers.head_dim,
        params=numbers.params,
        quant=numbers.quant,
    )
    size_bytes = sum(weight.size_bytes for weight in facts.weights)
    return _Subject(facts, ModelInfo("", "", "", "", numbers.quant.upper(), size_bytes))


def _check_present(found: Sequence[DeviceInfo], wanted: Sequence[DeviceInfo], failure: str) -> None:
    """The engine cannot plan for a device that is not there."""
    if failure:
        raise EngineFailure(f"the engine cannot be asked: {failure}", "leave out --exact and --verify")
    hint = "leave out --exact and --verify: the formula plans for devices that are not there"
    check_present(found, [device.name for device in wanted], hint)


def _decide(
    subject: _Subject,
    settings: Effective,
    found: Sequence[DeviceInfo],
    devices: tuple[DeviceInfo, ...],
    request: VramRequest,
) -> _Question:
    """Layers on "auto" become those that fit; the context stays as asked."""
    facts = subject.facts
    model = model_params(settings, str(subject.parts[0]) if subject.parts else "")
    context = context_params(settings, facts.n_ctx_train)
    plan = memory_plan(facts, model, context)
    check_cache_types(facts, plan)
    if settings.hardware.strict_offload:
        require_gpu(model.gpu_layers, devices)
    auto = model.gpu_layers == "auto"
    if auto:
        plan = plan_offload(facts, plan, devices, request.reserve_bytes).plan
    plan = replace(plan, gpu_layers=place(facts, plan, devices).gpu_layers)
    model = replace(model, gpu_layers=plan.gpu_layers, n_cpu_moe=plan.n_cpu_moe, cpu_moe=plan.cpu_moe)
    model = on_devices(model, found, devices, named=bool(request.named))
    return _Question(subject, model, context, plan, devices, request.reserve_bytes, auto)


def _misplaced(settings: Effective, question: _Question) -> Iterator[str]:
    """What was asked for in vain, or beyond what the model is good for."""
    layers, plan, trained = settings.hardware.n_gpu_layers, question.plan, question.subject.facts.n_ctx_train
    if layers not in (0, "auto") and not plan.gpu_layers:
        yield f"-ngl {layers}: there is no GPU device; all layers stay on the CPU"
    if 0 < trained < plan.n_ctx // (1 if plan.kv_unified else plan.n_seq):
        yield f"the model was trained for {trained:,} tokens; beyond them answers degrade"


def _attention(question: _Question, found: Sequence[DeviceInfo]) -> Iterator[str]:
    """Warnings about GPUs that are here; only the engine can tell what they are able to do."""
    facts, plan, here = question.subject.facts, question.plan, {device.name for device in found}

    def ask(
        names: Sequence[str], shapes: Sequence[AttentionShape], pairs: Sequence[TypePair]
    ) -> Mapping[str, Sequence[TypePair]]:
        present = [name for name in names if name in here]
        return probe_flash_attention(present, shapes, pairs, rpc=question.model.rpc) if present else {}

    return attention_off_gpus(facts, plan, question.context, place(facts, plan, question.devices), ask)


def _settings(facts: MemoryFacts, plan: MemoryPlan, flash_attn: Literal["on", "off", "auto"]) -> VramSettings:
    cells = cells_of(facts, plan)
    return VramSettings(
        n_ctx=cells.n_ctx,
        n_seq=plan.n_seq,
        kv_unified=plan.kv_unified,
        n_batch=cells.n_batch,
        n_ubatch=cells.n_ubatch,
        type_k=plan.type_k,
        type_v=plan.type_v,
        flash_attn=flash_attn,
        swa_full=plan.swa_full,
        n_gpu_layers=plan.gpu_layers,
    )


def _made(settings: VramSettings, sizes: ProbedSizes) -> VramSettings:
    """`settings` with what the engine made of them."""
    return replace(
        settings,
        n_ctx=sizes.n_ctx,
        n_batch=sizes.n_batch,
        n_ubatch=sizes.n_ubatch,
        flash_attn=sizes.flash_attn,
    )


def _dry_sizes(question: _Question, warnings: list[str], *, needed: bool) -> ProbedSizes | None:
    """Sizes by the engine; None, with a warning, where not even they can be had in this machine's memory."""
    try:
        return _ask_engine(question)
    except DoesNotFit as error:
        if needed:
            raise
        warnings.append(f"these are the formula's sizes, since the engine cannot tell: {error.message}")
        return None


def _ask_engine(question: _Question) -> ProbedSizes:
    with tempfile.TemporaryDirectory(prefix="llmrun-vram-", ignore_cleanup_errors=True) as folder:
        copies = sparse_copy(question.subject.parts, Path(folder))
        free_bytes = host_memory().free_bytes
        return probe_sizes(copies, question.model, question.context, state_bytes=free_bytes)


def _by_engine(formula: MemoryReport, sizes: ProbedSizes, reserve_bytes: int) -> MemoryReport:
    """The formula's report with the engine's sizes; what fits elsewhere stays the formula's."""
    infos = [report.device for report in formula.devices]
    held = [buckets(sizes.on(device.name)) for device in infos]
    devices = tuple(
        DeviceReport(device, held[i], has_room(infos, held, i, reserve_bytes))
        for i, device in enumerate(infos)
    )
    verdict = formula.verdict
    if all(device.fits for device in devices):
        verdict = "fits"
    elif verdict == "fits":
        verdict = "partial"
    return replace(formula, method="engine", devices=devices, verdict=verdict)
