"""From a model's name to an open engine: resolve, check the header, start the template child, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from llmrun.app.answer.growth import Growth
from llmrun.app.answer.kv_use import kv_use
from llmrun.app.memory.offload import Budget, LoadPlan, Offload, Subject, failed_load, plan_load
from llmrun.app.plan import context_params, model_params
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.chat.template import TemplateRenderer, load_template_file
from llmrun.chat.turns import Tokenizer
from llmrun.config.dirs import user_cache_dir
from llmrun.config.layers import Effective
from llmrun.engine.api import Engine, EngineFactory
from llmrun.errors import DoesNotFit
from llmrun.events import Event, Loaded, LoadProgress, ModelInfo, Notice
from llmrun.gguf.check import check_runnable
from llmrun.gguf.facts import ModelFacts
from llmrun.gguf.reader import read_header
from llmrun.gguf.text import printable
from llmrun.metrics.clock import Clock
from llmrun.store.model_digest import ModelFiles
from llmrun.store.resolve import resolve
from llmrun.units import format_count

DEFAULT_MODEL = "smollm2-135m"
"""Catalogue entry that comes with llmrun; answers when no model is named or configured."""

PREFIX_FOLDER = "prefix"
"""Of the snapshots, in the cache folder."""

MOST_TOKENS = 1 << 20
"""Of a context to come; a file may claim to be trained for any number."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Which model to open and how. `template` False opens it for raw completion only; `budget` is the memory
    that a plan of offload may use; `keeps_prefixes` False keeps nothing of what is said on disk."""

    model: str | None
    sources: SettingSources
    template_file: Path | None = None
    template: bool = True
    budget: Budget = field(default_factory=Budget)
    keeps_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class Opened:
    """A model ready to answer.

    `recommended` is the catalogue's sampling for it; `settings_json` the settings in force, with what the
    engine made of them; `offload` what was planned for the GPUs; `growth` how the context may grow, None
    where its size was given. `files` are the model's, as they were before it was loaded, `prefix_folder` is
    where prefixes of it may be kept on disk. `stopped` tells that the user wants to wait no longer.
    """

    engine: Engine
    info: ModelInfo
    facts: ModelFacts
    renderer: TemplateRenderer | None
    settings: Effective
    recommended: Mapping[str, object]
    settings_json: Mapping[str, object]
    load_s: float
    offload: Offload | None = None
    growth: Growth | None = None
    files: ModelFiles | None = None
    prefix_folder: Path | None = None
    stopped: Callable[[], bool] = lambda: False

    @property
    def tokenizer(self) -> Tokenizer:
        """The engine's tokenizer, as the chat room needs it."""
        facts = self.engine.facts
        return Tokenizer(self.engine.tokenize, self.engine.piece, facts.add_bos, facts.bos_text)

    @property
    def may_grow(self) -> bool:
        """Whether the context may become larger; where it has to and does not, memory has no room."""
        return self.growth is not None and self.growth.may_grow(self.engine.facts)

    @property
    def n_ctx_to_come(self) -> int:
        """Tokens that the context may hold when it has grown."""
        facts = self.engine.facts
        return max(facts.n_ctx_seq, min(facts.n_ctx_train, MOST_TOKENS) if self.may_grow else 0)

    def with_settings(self, sources: SettingSources) -> Opened:
        """The same model under changed settings; those of loading stay what they were."""
        sampling = {f"general.sampling.{key}": value for key, value in self.facts.sampling.items()}
        settings = sources.resolve(model_file=sampling, catalogue_sampling=self.recommended)
        return replace(
            self, settings=settings, settings_json=settings_json(settings, self.engine, self.offload)
        )

    def close(self) -> None:
        """Free everything; closing twice does nothing."""
        if self.renderer is not None:
            self.renderer.close()
        self.engine.close()


def default_engine(subject: Subject) -> EngineFactory:
    """The llama.cpp engine, imported only now."""
    from functools import partial

    from llmrun.app.answer.cache_bytes import exact_blocks
    from llmrun.engine.llama import open_engine
    from llmrun.gguf.hparams import memory_facts

    return partial(open_engine, exact=lambda made: exact_blocks(memory_facts(subject.headers[0]), made))


def open_model(
    request: OpenRequest,
    clock: Clock,
    stop: Stop,
    factory: EngineFactory | None = None,
    *,
    since_s: float = 0.0,
) -> Generator[Event, None, Opened]:
    """Open a model, yielding progress and notices, then `Loaded`. Load time counts from `since_s`.

    Raises:
        ModelNotFound, NotAModel: no such model, or the file cannot be one.
        UsageError: a setting is wrong.
        DoesNotFit, EngineFailure: the engine cannot open it.
        Interrupted: `stop` was pressed meanwhile.
    """
    first = request.sources.resolve()
    ref = first.context.model or DEFAULT_MODEL if request.model is None else request.model
    model = resolve(ref)
    files = ModelFiles.now(model.parts)
    header = read_header(model.path)
    facts = check_runnable(header, name=model.path.name)
    settings = request.sources.resolve(model_file=header.metadata, catalogue_sampling=model.sampling)
    if request.model is None:
        yield Notice("info", f"model: {ref} ({first.source('model')})")
    if model.repo:
        yield Notice("info", f"file: {printable(model.path.name)} of {model.repo}")
    for warning in settings.warnings:
        yield Notice("warning", warning)
    renderer = _renderer(request, facts)
    try:
        plan = LoadPlan(model_params(settings, str(model.path)), context_params(settings, facts.n_ctx_train))
        subject = Subject((header, *map(read_header, model.parts[1:])), facts)
        engine, plan = yield from _open(plan, subject, settings, request, stop, factory)
    except BaseException:
        if renderer is not None:
            renderer.close()
        raise
    stop.attach(engine)
    yield from _notices(engine, settings, facts, request, renderer)
    load_s = clock() - since_s
    info = ModelInfo(ref, str(model.path), facts.name, facts.arch, facts.quant, facts.size_bytes)
    yield Loaded(info, load_s, engine.facts.n_ctx_seq, engine.facts.n_threads, kv_use(engine))
    in_force = settings_json(settings, engine, plan.offload)
    growth = Growth(request.budget) if settings.context.n_ctx == "auto" else None
    folder = user_cache_dir(request.sources.env) / PREFIX_FOLDER if request.keeps_prefixes else None
    loaded = (in_force, load_s, plan.offload, growth, files, folder, stop.cancelled.is_set)
    return Opened(engine, info, facts, renderer, settings, model.sampling, *loaded)


def _open(
    plan: LoadPlan,
    subject: Subject,
    settings: Effective,
    request: OpenRequest,
    stop: Stop,
    factory: EngineFactory | None,
) -> Generator[Event, None, tuple[Engine, LoadPlan]]:
    """The engine and the plan that it was loaded by; an engine that the caller brings gets no plan."""
    if factory is not None:
        engine = yield from _load(plan, stop, factory)
        return engine, plan
    ctx_fixed, strict = settings.context.n_ctx != "auto", settings.hardware.strict_offload
    plan = plan_load(subject, plan.model, plan.context, request.budget, ctx_fixed=ctx_fixed, strict=strict)
    if plan.offload is not None:
        yield Notice("info", str(plan.offload))
    for warning in plan.warnings:
        yield Notice("warning", warning)
    try:
        engine = yield from _load(plan, stop, default_engine(subject))
    except DoesNotFit as failure:
        raise failed_load(subject, plan, request.budget, failure) from failure
    return engine, plan


def _renderer(request: OpenRequest, facts: ModelFacts) -> TemplateRenderer | None:
    """The template's child process, started now so that it comes up while the model loads."""
    if not request.template:
        return None
    source = load_template_file(request.template_file) if request.template_file else facts.chat_template
    if source is None:
        return None
    tokens = {"bos_token": facts.tokenizer.bos_text or "", "eos_token": facts.tokenizer.eos_text or ""}
    renderer = TemplateRenderer(source, special_tokens=tokens)
    renderer.start()
    return renderer


def _load(plan: LoadPlan, stop: Stop, factory: EngineFactory) -> Generator[Event, None, Engine]:
    """Load on a thread of its own, so that progress can be passed on while the library reads."""
    import threading

    reports: SimpleQueue[float | Engine | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            reports.put(factory(plan.model, plan.context, reports.put, stop.cancelled))
        except BaseException as error:  # noqa: BLE001 raised again in the thread that waits
            reports.put(error)

    threading.Thread(target=work, name="llmrun-load", daemon=True).start()
    while True:
        report = reports.get()
        if isinstance(report, BaseException):
            raise report
        if not isinstance(report, float):
            return report
        yield LoadProgress(report)


def _notices(
    engine: Engine,
    settings: Effective,
    facts: ModelFacts,
    request: OpenRequest,
    renderer: TemplateRenderer | None,
) -> Generator[Event, None, None]:
    made, wanted = engine.facts, settings.context.n_ctx
    if isinstance(wanted, int) and wanted and made.n_ctx_seq != wanted:
        yield Notice("info", f"context rounded to {format_count(made.n_ctx_seq)} tokens by the engine")
    if made.n_ctx_train and made.n_ctx_seq > made.n_ctx_train:
        trained = format_count(made.n_ctx_train)
        yield Notice("warning", f"the model was trained for {trained} tokens; beyond them answers degrade")
    cpus = os.cpu_count() or 1
    if max(made.n_threads, made.n_threads_batch) > cpus:
        yield Notice("warning", f"more threads than this machine's {cpus} CPUs: they wait for each other")
    layers = made.gpu_layers_requested
    if layers not in (0, "auto") and not made.gpu_layers:
        stay = f"-ngl {layers}: the engine has no GPU device; all layers stay on the CPU"
        yield Notice("warning", f"{stay} (`llmrun doctor` looks for GPUs)")
    if request.template and renderer is None:
        yield Notice(
            "warning",
            "the model file has no chat template: the text is continued as it is "
            "(--chat-template-file gives one)",
        )


def settings_json(settings: Effective, engine: Engine, offload: Offload | None = None) -> dict[str, object]:
    """Effective settings with the engine's own figures in place of "auto" and of rounded values."""
    made = engine.facts
    return {
        **settings.as_json(),
        "n_ctx": made.n_ctx_seq,
        "n_batch": made.n_batch,
        "n_ubatch": made.n_ubatch,
        "n_threads": made.n_threads,
        "n_threads_batch": made.n_threads_batch,
        "n_gpu_layers": settings.hardware.n_gpu_layers,
        "n_gpu_layers_offloaded": made.gpu_layers,
        "offload": None if offload is None else offload.as_json(),
        "flash_attn": made.flash_attn,
        "extra_bufts": made.extra_bufts,
    }
