"""What one use of a model waits for, and how far each lever would move it, from what was measured.

The use is a prompt and an output; its phases take prompt / prefill rate and output / decode rate
(`bench/estimate.py`). Every lever is worked out alone:

- smaller quantization: half the bytes of the weights. Only the part of a step that reading them explains
  shrinks: the measured bytes a second as a share of the machine's, less what goes to keys and values.
- shorter prompt: half of it. Prefix cache: all of the prompt but its last token is held.
- batching: several requests at once, by the rate measured with several sequences, else until decode has as
  much to compute as prefill.
- speculation: drafts of a few tokens that are all accepted, the most it can do; checking them takes one step,
  or as long as a prefill of so many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmrun.bench.estimate import RateCurve, RatePoint, Request, batched
from llmrun.reports.bench import LeverGain, Record, Verdict

BATCH, DRAFT = 4, 4
_LEAST_GAIN = 1.005


@dataclass(frozen=True, slots=True)
class _Use:
    request: Request
    weights_share: float | None
    batch: tuple[int, float] | None
    """Sequences and the measured sum of their rates."""


def verdicts(records: Sequence[Record]) -> tuple[Verdict, ...]:
    """One for each subject of which both phases were measured."""
    return tuple(filter(None, map(_verdict, _by_subject(records))))


def _by_subject(records: Sequence[Record]) -> list[list[Record]]:
    """Records of equal model and settings. A context for several sequences belongs to the same subject."""
    groups: dict[object, list[Record]] = {}
    for record in records:
        groups.setdefault(record.subject, []).append(record)
    return list(groups.values())


def _verdict(records: Sequence[Record]) -> Verdict | None:
    use = _use(records)
    if use is None:
        return None
    times = use.request.times()
    levers = [lever for lever in _levers(use) if lever.gain >= _LEAST_GAIN]
    return Verdict(
        records[0].subject.model_ref,
        use.request.prompt_tokens,
        use.request.output_tokens,
        times.prefill_s,
        times.decode_s,
        tuple(sorted(levers, key=lambda lever: -lever.gain)),
    )


def _use(records: Sequence[Record]) -> _Use | None:
    """The request to judge: a real one if there is any, else the first prompt and the first output."""
    alone = [r for r in records if r.test.n_parallel == 1]
    whole = next((r for r in alone if r.test.kind == "e2e" and r.test.cache == "cold"), None)
    prefill = RateCurve.through(_points([r for r in alone if r.test.kind == "pp"]))
    decode = RateCurve.through(_points([r for r in alone if r.test.kind == "tg"]))
    if whole is not None and whole.request is not None:
        prefill = _constant(whole.request.prefill_rate) or prefill
        decode = _constant(whole.request.generation_rate) or decode
    counts = whole or next((r for r in alone if r.test.kind == "pg"), None)
    prompt = counts.test.n_prompt if counts else _first(alone, "n_prompt")
    output = counts.test.n_gen if counts else _first(alone, "n_gen")
    if prefill is None or decode is None or not prompt or not output:
        return None
    return _Use(Request(prompt, output, prefill, decode), _share(alone), _measured_batch(records))


def _points(records: Sequence[Record]) -> list[RatePoint]:
    return [RatePoint(r.test.n_depth + (r.test.n_prompt + r.test.n_gen) / 2, r.spread.mean) for r in records]


def _constant(rate: float | None) -> RateCurve | None:
    return RateCurve.constant(rate) if rate else None


def _first(records: Sequence[Record], count: str) -> int:
    return next((n for r in records if (n := int(getattr(r.test, count)))), 0)


def _share(records: Sequence[Record]) -> float | None:
    """Share of a decode step's time that reading weights explains, by the first test of it."""
    for traffic in (record.traffic for record in records):
        if traffic is not None and traffic.fraction is not None:
            return min(1.0, traffic.fraction) * traffic.weights_per_step / traffic.bytes_per_step
    return None


def _measured_batch(records: Sequence[Record]) -> tuple[int, float] | None:
    several = [r for r in records if r.test.kind == "tg" and r.test.n_parallel > 1]
    best = max(several, key=lambda r: r.spread.mean, default=None)
    return None if best is None else (best.test.n_parallel, best.spread.mean)


def _levers(use: _Use) -> Iterator[LeverGain]:
    request = use.request
    times = request.times()
    total_s = times.total_s
    if use.weights_share is not None:
        halved_s = times.decode_s * (1 - use.weights_share / 2)
        yield LeverGain("quantization", "half the bytes", total_s / (times.prefill_s + halved_s))
    shorter = replace(request, prompt_tokens=(request.prompt_tokens + 1) // 2)
    yield LeverGain("shorter_prompt", "half", total_s / shorter.times().total_s)
    cached = replace(request, cached_tokens=request.prompt_tokens - 1)
    yield LeverGain("prefix_cache", str(cached.cached_tokens), total_s / cached.times().total_s)
    yield _batching(use, total_s)
    checking_s = max(request.decode.seconds_at(request.mean_depth),
                     (DRAFT + 1) * request.prefill.seconds_at(request.mean_depth))  # fmt: skip
    speculated_s = times.prefill_s + request.output_tokens / (DRAFT + 1) * checking_s
    yield LeverGain("speculation", str(DRAFT), total_s / speculated_s, bound=True)


def _batching(use: _Use, total_s: float) -> LeverGain:
    count, rate = use.batch or (BATCH, None)
    together_s = batched(use.request, count, rate).total_s
    return LeverGain("batching", str(count), total_s * count / together_s, bound=rate is None)
