"""`llmrun estimate`: how long a request will take, from given rates or from a model's measured ones."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from llmrun.app.estimate.model import Subject, count_tokens, measured_rates, open_subject
from llmrun.app.estimate.rates import From, Rates
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.bench.estimate import RateCurve, Request, StepBytes, levers
from llmrun.engine.api import EngineFactory
from llmrun.errors import UsageError
from llmrun.events import Event
from llmrun.metrics.clock import Clock
from llmrun.reports.estimate import (
    Ceiling,
    EstimateReport,
    Lever,
    RateSource,
    RateUsed,
    TextSample,
)

DEFAULT_PROMPT, DEFAULT_OUTPUT = 512, 128
_HALF = ("", 0.5)


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """The request to estimate. Counts that are None were not given; rates are tokens a second.

    `retrieved_tokens`: the part of the prompt that was looked up for it. `weights_bytes` and `bandwidth` (in
    bytes a second) bound decode instead of the model's and the machine's. `texts`: samples by name. `source`:
    where rates must come from, None: from the best there is.
    """

    sources: SettingSources
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    retrieved_tokens: int | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    weights_bytes: int | None = None
    bandwidth: float | None = None
    quant: str | None = None
    parallel: int = 4
    texts: Sequence[tuple[str, str]] = ()
    source: From | None = None

    @property
    def numbers_only(self) -> bool:
        """True where the user described the machine instead of naming a model."""
        given = (self.prefill_rate, self.decode_rate, self.weights_bytes, self.bandwidth)
        return self.model is None and not self.texts and any(value is not None for value in given)


@dataclass(frozen=True, slots=True)
class _Speed:
    """Curves with where they come from."""

    prefill: RateCurve
    decode: RateCurve
    prefill_source: RateSource
    decode_source: RateSource
    note: str = ""
    together: Mapping[int, float] = field(default_factory=dict)


def estimate(
    request: EstimateRequest, clock: Clock, stop: Stop, factory: EngineFactory | None = None
) -> Generator[Event, None, EstimateReport]:
    """The report; events tell of a model that is loaded to be measured.

    Raises:
        UsageError: counts, rates or texts that cannot be, or a rate that nothing tells.
        ModelNotFound, NotAModel, DoesNotFit, EngineFailure: as `open_model`, where a model is asked for.
        Interrupted: `stop` was pressed.
    """
    subject = None if request.numbers_only else open_subject(request.model, request.sources)
    samples = () if subject is None else count_tokens(subject, request.texts)
    prompt, output = _counts(request, samples)
    ceiling = _ceiling(request, subject, prompt + output / 2)
    if subject is None:
        speed = _given(request, prompt, output, ceiling)
    else:
        speed = yield from _of_model(request, subject, prompt, output, clock, stop, factory)
    return _report(request, subject, samples, (prompt, output), speed, ceiling)


def _counts(request: EstimateRequest, samples: Sequence[TextSample]) -> tuple[int, int]:
    """Tokens of prompt and output. Numbers without a rate for a phase leave that phase out."""
    prompt, output = request.prompt_tokens, request.output_tokens
    if prompt is None:
        if len(samples) == 1:
            prompt = samples[0].tokens
        else:
            prompt = 0 if request.numbers_only and request.prefill_rate is None else DEFAULT_PROMPT
    if output is None:
        bound = request.weights_bytes is not None and request.bandwidth is not None
        unknown = request.numbers_only and request.decode_rate is None and not bound
        output = 0 if unknown else DEFAULT_OUTPUT
    for name, part in (
        ("--cached-tokens", request.cached_tokens),
        ("--retrieved-tokens", request.retrieved_tokens or 0),
    ):
        if part > prompt:
            raise UsageError(
                f"{name} {part:,} is more than the prompt of {prompt:,} tokens", "give fewer, or a -p"
            )
    return prompt, output


def _given(request: EstimateRequest, prompt: int, output: int, ceiling: Ceiling | None) -> _Speed:
    prefill, decode = request.prefill_rate, request.decode_rate
    if (request.weights_bytes is None) != (request.bandwidth is None):
        raise UsageError("--weights and --bandwidth bound decode together only", "give both, or a MODEL")
    source: RateSource = "given"
    if decode is None and ceiling is not None:
        decode, source = ceiling.rate, "bandwidth"
    if prompt and prefill is None:
        raise UsageError("no rate tells how long the prompt takes", "give --prefill-rate, or a MODEL")
    if output and decode is None:
        hint = "give --decode-rate, --weights with --bandwidth, or a MODEL"
        raise UsageError("no rate tells how long the output takes", hint)
    return _Speed(
        RateCurve.constant(prefill or math.inf), RateCurve.constant(decode or math.inf), "given", source
    )


def _of_model(
    request: EstimateRequest,
    subject: Subject,
    prompt: int,
    output: int,
    clock: Clock,
    stop: Stop,
    factory: EngineFactory | None,
) -> Generator[Event, None, _Speed]:
    """Given rates first; what else is needed, from what was or is now measured."""
    needs = (bool(prompt) and request.prefill_rate is None, bool(output) and request.decode_rate is None)
    found: Rates | None = None
    if any(needs):
        found = yield from measured_rates(
            subject, request.source, needs, prompt + output, clock, stop, factory
        )
    prefill, prefill_source = _curve(request.prefill_rate, found, found.prefill if found else None)
    decode, decode_source = _curve(request.decode_rate, found, found.decode if found else None)
    if found is None:
        return _Speed(prefill, decode, prefill_source, decode_source)
    return _Speed(prefill, decode, prefill_source, decode_source, found.note, found.together)


def _curve(
    given: float | None, found: Rates | None, measured: RateCurve | None
) -> tuple[RateCurve, RateSource]:
    """A phase's rate and where it is from; infinite for a phase without tokens, which needs none."""
    if given is not None or found is None or measured is None:
        return RateCurve.constant(given or math.inf), "given"
    return measured, found.source


def _ceiling(request: EstimateRequest, subject: Subject | None, depth: float) -> Ceiling | None:
    """Most that decode can do; None where weights or bandwidth are not known."""
    if request.weights_bytes is not None:
        step: float | None = request.weights_bytes
    else:
        step = None if subject is None else subject.step(depth).total_bytes
    if not step:
        return None
    if request.bandwidth is not None:
        return Ceiling(step, request.bandwidth, "given")
    machine = None if subject is None else subject.bandwidth()
    return None if machine is None else Ceiling(step, machine.bytes_per_s, "measured", machine.busy)


def _report(
    request: EstimateRequest,
    subject: Subject | None,
    samples: Sequence[TextSample],
    counts: tuple[int, int],
    speed: _Speed,
    ceiling: Ceiling | None,
) -> EstimateReport:
    prompt, output = counts
    asked = Request(prompt, output, speed.prefill, speed.decode, request.cached_tokens)
    prefill_rate = speed.prefill.mean_rate(asked.held_tokens, asked.prefill_tokens)
    decode_rate = speed.decode.mean_rate(prompt, output)
    rates = (
        _used(speed.prefill, speed.prefill_source, prefill_rate, prompt),
        _used(speed.decode, speed.decode_source, decode_rate, prompt + output),
    )
    return EstimateReport(
        model=None if subject is None else subject.info,
        prompt_tokens=prompt,
        cached_tokens=asked.held_tokens,
        output_tokens=output,
        times=asked.times(),
        prefill=rates[0],
        decode=rates[1],
        ceiling=ceiling,
        levers=tuple(_levers(request, subject, asked, ceiling, speed)),
        texts=tuple(sample.at(decode_rate) for sample in samples),
        note=speed.note,
    )


def _used(curve: RateCurve, source: RateSource, rate: float | None, depth: float) -> RateUsed:
    measured = source not in ("given", "bandwidth")
    points = tuple((point.depth, point.rate) for point in curve.points) if rate is not None else ()
    return RateUsed(source, rate, points, measured and rate is not None and depth > 2 * curve.deepest)


def _levers(
    request: EstimateRequest,
    subject: Subject | None,
    asked: Request,
    ceiling: Ceiling | None,
    speed: _Speed,
) -> list[Lever]:
    if request.quant is not None and subject is None:
        raise UsageError("--quant is compared with the quantization of a model", "name a MODEL")
    quant = _HALF if subject is None else subject.other_quant(request.quant)
    step = StepBytes(ceiling.bytes_per_token) if ceiling else None
    if subject is not None and request.weights_bytes is None:
        step = subject.step(asked.mean_depth)
    rate = speed.decode.mean_rate(asked.prompt_tokens, asked.output_tokens)
    return list(
        levers(
            asked,
            retrieved_tokens=asked.prompt_tokens
            if request.retrieved_tokens is None
            else request.retrieved_tokens,
            quant=quant,
            batch=request.parallel,
            step=step,
            memory_share=min(1.0, rate / ceiling.rate) if rate and ceiling else None,
            together=speed.together.get(request.parallel),
        )
    )
