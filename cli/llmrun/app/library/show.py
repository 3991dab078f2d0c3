"""What a model file says about itself: `llmrun show`.

Only headers are read, of every part where the model is stored in several files. A file that cannot run can
still be described, so nothing but an unreadable header is an error here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from llmrun.app.library.find import Best, Found, find_model
from llmrun.app.library.kv_growth import kv_growth
from llmrun.chat.template import TemplateRaised, TemplateRenderer, TemplateUnsafe
from llmrun.config.dirs import user_cache_dir
from llmrun.errors import NotAModel, TemplateUnusable
from llmrun.events import ModelInfo
from llmrun.gguf.architectures import unknown_architecture
from llmrun.gguf.check import check_runnable, other_kind
from llmrun.gguf.facts import ModelFacts, model_facts
from llmrun.gguf.header import GgufHeader, LazyArray, MetaValue
from llmrun.gguf.layers import per_layer
from llmrun.gguf.reader import read_header
from llmrun.reports.download import HubAwaited
from llmrun.reports.model import (
    ArraySummary,
    AttentionReport,
    ExpertReport,
    FilePart,
    MetadataValue,
    ModelReport,
    TemplateReport,
    TensorRow,
    TensorTypeUse,
    VocabularyReport,
    WindowReport,
)

ARRAY_ITEMS_SHOWN = 8
MAX_TEMPLATE_CHARS = 1 << 20
"""A longer template is not tried: no real one comes near."""


def show_model(ref: str, *, check_template: bool = True) -> Generator[HubAwaited, None, ModelReport]:
    """Describe the model that `ref` names. `check_template` off leaves its chat template untried.

    Raises:
        ModelNotFound, UsageError: there is no such model, or no single one.
        NetworkFailure: it is not on this machine, and the Hub cannot be asked.
        NotAModel: it is another kind of file, or its header is broken or ends too early.
    """
    found = yield from find_model(ref, user_cache_dir(os.environ), Best())
    model = found.model
    headers = [read_header(path) for path in model.parts]
    header = replace(headers[0], tensors=tuple(t for h in headers for t in h.tensors), file_bytes=None)
    facts = model_facts(header)
    renderer = _renderer(facts) if check_template else None
    try:
        problem = _problem(header, model.path)
        template = _template(facts, renderer)
    finally:
        if renderer is not None:
            renderer.close()
    return _report(found, headers, header, facts, problem, template)


def _report(
    found: Found,
    headers: Sequence[GgufHeader],
    header: GgufHeader,
    facts: ModelFacts,
    problem: str,
    template: TemplateReport,
) -> ModelReport:
    model = found.model
    parts = tuple(
        FilePart(place, one.file_bytes or 0, one.needed_bytes)
        for place, one in zip(found.places, headers, strict=True)
    )
    size_bytes = sum(part.size_bytes for part in parts)
    alone = facts.split is not None and len(parts) == 1
    return ModelReport(
        model=ModelInfo(model.ref, found.place, facts.name, facts.arch, facts.quant, size_bytes),
        kind=_kind(header, facts),
        problem=problem or unknown_architecture(facts.arch),
        version=header.version,
        parts=parts,
        part=(facts.split.no + 1, facts.split.count) if alone and facts.split else None,
        n_params=facts.n_params,
        n_layer=facts.n_layer,
        n_embd=facts.n_embd,
        n_ctx_train=facts.n_ctx_train,
        attention=_attention(header, facts, usable=not problem),
        experts=_experts(header, facts),
        vocabulary=_vocabulary(facts),
        declared_quant=facts.quantization.declared,
        tensor_types=_tensor_types(header),
        template=template,
        licence=facts.licence,
        licence_link=header.text("general.license.link") or "",
        sampling=facts.sampling,
        catalogue_sampling=model.sampling,
        languages=_summary(header.array("general.languages")),
        tags=_summary(header.array("general.tags")),
        metadata={key: _shown(value) for key, value in header.metadata.items()},
        tensors=tuple(TensorRow(t.name, t.dims, t.type.name, t.size_bytes) for t in header.tensors),
        remote=found.remote,
    )


def _kind(header: GgufHeader, facts: ModelFacts) -> str:
    """The file's own word for what it is, or a plainer one where it says "model" of anything."""
    other = other_kind(header.metadata) if facts.kind == "model" else None
    return facts.kind if other is None else other.partition(" ")[2]


def _problem(header: GgufHeader, path: Path) -> str:
    """Why the file cannot generate text, apart from being cut short; empty where nothing is against it."""
    try:
        check_runnable(header, name=path.name)
    except NotAModel as error:
        return error.message
    return ""


def _renderer(facts: ModelFacts) -> TemplateRenderer | None:
    """The template's child process, started early so that it comes up meanwhile."""
    source = facts.chat_template
    if source is None or len(source) > MAX_TEMPLATE_CHARS:
        return None
    tokens = {"bos_token": facts.tokenizer.bos_text or "", "eos_token": facts.tokenizer.eos_text or ""}
    renderer = TemplateRenderer(source, special_tokens=tokens)
    renderer.start()
    return renderer


def _template(facts: ModelFacts, renderer: TemplateRenderer | None) -> TemplateReport:
    text, named = facts.chat_template, tuple(facts.named_templates)
    if text is None:
        return TemplateReport("none", "", None, named)
    if renderer is None:
        long = f"it has {len(text):,} characters" if len(text) > MAX_TEMPLATE_CHARS else ""
        return TemplateReport("unchecked", long, text, named)
    try:
        renderer.check()
    except TemplateUnsafe as error:
        return TemplateReport("unsafe", error.message, text, named)
    except TemplateUnusable as error:
        return TemplateReport("invalid", error.message, text, named)
    try:
        renderer.render([{"role": "user", "content": "Hello"}])
    except TemplateRaised:  # it wants another conversation, which is its right
        return TemplateReport("valid", "", text, named)
    except TemplateUnsafe as error:
        return TemplateReport("unsafe", error.message, text, named)
    except TemplateUnusable as error:
        return TemplateReport("fails", error.message, text, named)
    return TemplateReport("valid", "", text, named)


def _attention(header: GgufHeader, facts: ModelFacts, *, usable: bool) -> AttentionReport:
    window = facts.window
    growth, note = kv_growth(header) if usable else (None, "it is no usable text-generation model")
    return AttentionReport(
        n_head=facts.n_head,
        n_head_kv=facts.n_head_kv,
        head_size_k=facts.head_size_k,
        head_size_v=facts.head_size_v,
        window=WindowReport(window.n_swa, window.chunked, window.layers) if window.n_swa else None,
        kv_bytes_per_token=growth,
        kv_note=note,
    )


def _experts(header: GgufHeader, facts: ModelFacts) -> ExpertReport | None:
    arch = facts.arch
    count = header.integer(f"{arch}.expert_count") or 0
    if count < 1:
        return None
    used = per_layer(header, f"{arch}.expert_used_count", len(facts.window.layers), ())
    return ExpertReport(count, used, max(0, header.integer(f"{arch}.expert_shared_count") or 0))


def _vocabulary(facts: ModelFacts) -> VocabularyReport:
    tokenizer = facts.tokenizer
    return VocabularyReport(
        tokenizer.model, tokenizer.n_vocab, tokenizer.bos_text, tokenizer.eos_text, tokenizer.add_bos
    )


def _tensor_types(header: GgufHeader) -> tuple[TensorTypeUse, ...]:
    """Types by the bytes they take, largest first."""
    count: Counter[str] = Counter()
    n_params: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    for tensor in header.tensors:
        count[tensor.type.name] += 1
        n_params[tensor.type.name] += tensor.n_params
        size_bytes[tensor.type.name] += tensor.size_bytes
    return tuple(
        TensorTypeUse(name, count[name], n_params[name], taken) for name, taken in size_bytes.most_common()
    )


def _summary(array: LazyArray | None) -> ArraySummary | None:
    if array is None:
        return None
    first = tuple(islice(array, ARRAY_ITEMS_SHOWN))
    return ArraySummary(array.item_type.name.lower(), len(array), first)


def _shown(value: MetaValue) -> MetadataValue:
    if isinstance(value, LazyArray):
        summary = _summary(value)
        assert summary is not None
        return summary
    return value
