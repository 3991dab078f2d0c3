"""The model of an estimate: its header, the bytes it reads, its tokenizer, and rates that were measured."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrun.app.bench.bandwidth import ReadBandwidth, read_bandwidth
from llmrun.app.bench.subject import header_digest
from llmrun.app.estimate.rates import From, Rates, Record, from_bench, from_log, measure
from llmrun.app.loading import DEFAULT_MODEL, OpenRequest, open_model
from llmrun.app.memory.memory_plan import memory_plan
from llmrun.app.plan import context_params, model_params
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.bench.estimate import StepBytes
from llmrun.config.dirs import user_data_dir
from llmrun.engine.api import EngineFactory
from llmrun.engine.probe.sizes import probe_devices
from llmrun.errors import EngineFailure, UsageError
from llmrun.events import Event, ModelInfo, Notice
from llmrun.gguf.check import check_runnable
from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import read_header
from llmrun.journal.bench import bench_runs
from llmrun.journal.lines import read
from llmrun.journal.requests import request_log
from llmrun.memory.numbers import bits_of
from llmrun.memory.plan import MemoryPlan
from llmrun.memory.quants import QUANT_BITS, bits_per_weight
from llmrun.memory.traffic import active_weight_bytes, context_bytes
from llmrun.metrics.clock import Clock
from llmrun.reports.estimate import TextSample
from llmrun.store.resolve import resolve

_USUAL, _ABOVE_USUAL = "Q4_K_M", 6.0
_SMALLER = 0.85
_LEAST_DEPTH = 512


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on this machine with the settings it would run with. `uses_gpu`: layers would leave the CPU."""

    ref: str | None
    sources: SettingSources
    info: ModelInfo
    path: Path
    facts: MemoryFacts
    plan: MemoryPlan
    n_threads: int

    def step(self, depth: float) -> StepBytes:
        """What a decode step at this depth reads."""
        return StepBytes(active_weight_bytes(self.facts), context_bytes(self.facts, self.plan, depth))

    def bandwidth(self) -> ReadBandwidth | None:
        """That of the memory which holds the weights; None where that is a GPU's, or not known."""
        try:
            gpu = any(device.kind in ("gpu", "igpu") for device in probe_devices())
            if gpu and self.plan.gpu_layers:
                return None
            return read_bandwidth(self.n_threads)
        except EngineFailure:
            return None

    def other_quant(self, wanted: str | None) -> tuple[str, float]:
        """Name of a quantization and its bytes as a share of those now; by default a usual smaller one.

        Raises:
            UsageError: no quantization of that name.
        """
        bits = bits_per_weight(self.facts)
        if wanted is None:
            smaller = (name for name, size in QUANT_BITS.items() if size <= _SMALLER * bits)
            wanted = _USUAL if bits > _ABOVE_USUAL else next(smaller, list(QUANT_BITS)[-1])
        return wanted.upper(), bits_of(wanted) / bits if bits else 1.0


def open_subject(ref: str | None, sources: SettingSources) -> Subject:
    """Read a model's header; nothing is loaded.

    Raises:
        ModelNotFound, NotAModel: there is none, or the file cannot be one.
        UsageError: a setting is wrong.
    """
    named = ref or sources.resolve().context.model or DEFAULT_MODEL
    model = resolve(named)
    headers = [read_header(path) for path in model.parts]
    facts = check_runnable(headers[0], name=model.path.name)
    settings = sources.resolve(model_file=headers[0].metadata, catalogue_sampling=model.sampling)
    context = context_params(settings, facts.n_ctx_train)
    weights = memory_facts(headers[0], headers[1:])
    plan = memory_plan(weights, model_params(settings, str(model.path)), context)
    info = ModelInfo(named, str(model.path), facts.name, facts.arch, facts.quant, facts.size_bytes)
    return Subject(ref, sources, info, model.path, weights, plan, context.n_threads)


def count_tokens(subject: Subject, texts: Sequence[tuple[str, str]]) -> tuple[TextSample, ...]:
    """Each text by the model's own tokenizer, which is loaded without the weights."""
    if not texts:
        return ()
    from llmrun.engine.vocab_only import open_vocab

    with open_vocab(subject.path) as vocab:
        return tuple(
            TextSample(
                name,
                writing_system(text),
                len(text),
                len(text.encode()),
                len(vocab.tokenize(text, add_special=False, parse_special=False)),
            )
            for name, text in texts
        )


def writing_system(text: str) -> str:
    """The writing system that most letters of a text belong to, such as "Latin"; empty without letters.

    It is the first word of a letter's name in Unicode, except that Chinese characters are called "Han".
    """
    letters = Counter(letter for letter in text if letter.isalpha())
    systems: Counter[str] = Counter()
    for letter, count in letters.items():
        systems[unicodedata.name(letter, "").split(" ")[0].split("-")[0]] += count
    systems.pop("", None)
    if not systems:
        return ""
    name = systems.most_common(1)[0][0]
    return "Han" if name == "CJK" else name.capitalize()


def measured_rates(
    subject: Subject,
    source: From | None,
    needs: tuple[bool, bool],
    deepest: int,
    clock: Clock,
    stop: Stop,
    factory: EngineFactory | None,
) -> Generator[Event, None, Rates]:
    """Rates of the phases that are needed (prefill, decode), from `source` or the best there is.

    Raises:
        UsageError: `source` knows nothing of this model. Else as `open_model`.
    """
    for rates in _remembered(subject, source):
        if (rates.prefill or not needs[0]) and (rates.decode or not needs[1]):
            return rates
    if source in ("bench", "log"):
        what = "benchmark" if source == "bench" else "request in the log"
        raise UsageError(
            f"there is no {what} of this model that tells both rates",
            f"`llmrun bench {subject.info.ref}` measures them, --from measure does it in a few seconds",
        )
    yield Notice("info", "no measured rates of this model: measuring for a few seconds")
    opened = yield from open_model(
        OpenRequest(subject.ref, subject.sources, template=False), clock, stop, factory
    )
    try:
        return measure(opened.engine, clock, max(deepest, _LEAST_DEPTH))
    finally:
        opened.close()


def _remembered(subject: Subject, source: From | None) -> Iterator[Rates]:
    folder = user_data_dir(subject.sources.env)
    if source in (None, "bench"):
        records: list[Record] = [record for run in bench_runs(folder) for record in run.records]
        digest = header_digest(subject.path, read_header(subject.path)) if records else ""
        found = from_bench(records, lambda record: record.get("model_digest") == digest)
        if found is not None:
            yield found
    if source in (None, "log"):
        found = from_log(read(request_log(folder)).records, subject.info)
        if found is not None:
            yield found
