"""The time of a request before it is made: pure arithmetic on rates.

Prefill evaluates the prompt's tokens together and is bound by arithmetic; decode makes one token a step and
is bound by reading the weights and the K/V of all tokens before. So

    total = prompt tokens / prefill rate + output tokens / decode rate

where both rates fall as the context grows: attention of a token costs time in proportion to the tokens
before it. The time a token takes is then a straight line over its depth, and between measured depths that
is what is interpolated (not the rate, which is its inverse). Beyond the deepest point the line goes on
with the mean slope of all points; before the first one it stays level. Depths near each other count as one:
what chance makes of two rates there would go on as a slope over thousands of tokens. Bandwidth bound: a step
reads every active weight and the K/V once, so decode makes at most bandwidth / bytes tokens a second
(Williams, Waterman, Patterson: Roofline, 2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from llmrun.reports.estimate import Lever, PhaseTimes

_LEAST_PREFILL = 1
"""Tokens a fully cached prompt still evaluates: a cache holds no logits."""
_APART_TOKENS = 128


@dataclass(frozen=True, slots=True)
class RatePoint:
    """`rate` tokens a second at `depth` tokens of context, the middle of what was measured."""

    depth: float
    rate: float


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A phase's rate over the depth of context; at least one point, depths ascending."""

    points: tuple[RatePoint, ...]

    @staticmethod
    def constant(rate: float) -> RateCurve:
        """The same rate at any depth."""
        return RateCurve((RatePoint(0.0, rate),))

    @staticmethod
    def through(points: Iterable[RatePoint]) -> RateCurve | None:
        """A curve through measured points, the median of those that lie less than 128 tokens apart.

        None without a point; points without a positive rate are left out.
        """
        near: list[list[RatePoint]] = []
        usable = (point for point in points if point.rate > 0 and point.depth >= 0)
        for point in sorted(usable, key=lambda point: point.depth):
            if near and point.depth - near[-1][0].depth < _APART_TOKENS:
                near[-1].append(point)
            else:
                near.append([point])
        found = (RatePoint(median(p.depth for p in some), median(p.rate for p in some)) for some in near)
        return RateCurve(tuple(found)) if near else None

    @property
    def deepest(self) -> float:
        """Depth of the last point."""
        return self.points[-1].depth

    def scaled(self, factor: float) -> RateCurve:
        """All rates times `factor`."""
        return RateCurve(tuple(replace(point, rate=point.rate * factor) for point in self.points))

    def seconds_at(self, depth: float) -> float:
        """Time of one token there."""
        points = self.points
        if depth <= points[0].depth or len(points) == 1:
            return 1 / points[0].rate
        for left, right in pairwise(points):
            if depth <= right.depth:
                share = (depth - left.depth) / (right.depth - left.depth)
                return (1 - share) / left.rate + share / right.rate
        return 1 / points[-1].rate + self._slope() * (depth - self.deepest)

    def _slope(self) -> float:
        """Seconds that a token of context adds to a token, over all points; depth never speeds a token up."""
        first, last = self.points[0], self.points[-1]
        return max(0.0, (1 / last.rate - 1 / first.rate) / (last.depth - first.depth))

    def seconds(self, start: float, count: float) -> float:
        """Time of `count` tokens of which the first has depth `start`: the area under the line."""
        if len(self.points) == 1:
            return count / self.points[0].rate
        end = start + count
        inner = [point.depth for point in self.points if start < point.depth < end]
        edges = [start, *inner, end]
        return sum((b - a) * (self.seconds_at(a) + self.seconds_at(b)) / 2 for a, b in pairwise(edges))

    def mean_rate(self, start: float, count: float) -> float | None:
        """Tokens a second over these tokens; None for none."""
        seconds = self.seconds(start, count)
        return count / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a decode step reads, on the mean over a request: active weights, and K/V of its context."""

    weights_bytes: float
    context_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Both."""
        return self.weights_bytes + self.context_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the rates of the machine. `cached_tokens` of the prompt are not evaluated again."""

    prompt_tokens: int
    output_tokens: int
    prefill: RateCurve
    decode: RateCurve
    cached_tokens: int = 0

    @property
    def mean_depth(self) -> float:
        """Context of the output's middle token."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens to evaluate, at least one where there is a prompt."""
        return max(self.prompt_tokens - self.cached_tokens, min(self.prompt_tokens, _LEAST_PREFILL))

    @property
    def held_tokens(self) -> int:
        """Prompt tokens that are in the cache."""
        return self.prompt_tokens - self.prefill_tokens

    def times(self) -> PhaseTimes:
        """How long its phases take."""
        return PhaseTimes(
            self.prefill.seconds(self.held_tokens, self.prefill_tokens),
            self.decode.seconds(self.prompt_tokens, self.output_tokens),
        )


def levers(
    request: Request,
    *,
    retrieved_tokens: int,
    quant: tuple[str, float],
    batch: int,
    step: StepBytes | None = None,
    memory_share: float | None = None,
    together: float | None = None,
) -> Iterator[Lever]:
    """The request with one thing changed at a time.

    Args:
        retrieved_tokens: the part of the prompt of which half is left out.
        quant: a quantization's name and its bytes as a share of those now. Decode is bound by reading them,
            so its time follows the bytes; prefill is bound by arithmetic, which stays the same.
        batch: requests decoded together. A step reads the weights once for all of them and so takes no
            longer, until it has as much to compute as a prefill: then the prefill rate bounds their sum.
        step: what decode reads; None counts weights alone.
        memory_share: share of a step's time that reading memory explains; the rest does not shrink. None: not
            known, then all of it at most.
        together: the measured sum of the rates of such a batch, where there is one.
    """
    before_s = request.times().total_s
    if request.prompt_tokens > _LEAST_PREFILL:
        cached = replace(request, cached_tokens=request.prompt_tokens - _LEAST_PREFILL)
        yield Lever("prefix_cache", str(cached.cached_tokens), cached.times(), before_s)
        left_out = min(retrieved_tokens, request.prompt_tokens) // 2
        yield Lever("half_retrieved", str(left_out), _shorter(request, left_out).times(), before_s)
    if request.output_tokens:
        name, share = quant
        factor = 1 - (1.0 if memory_share is None else memory_share) * (1 - _bytes_factor(step, share))
        smaller = replace(request, decode=request.decode.scaled(1 / factor))
        yield Lever("quantization", name, smaller.times(), before_s, bound=memory_share is None)
        if batch > 1:
            times = batched(request, batch, together)
            yield Lever("batch", str(batch), times, before_s * batch, batch, bound=together is None)


def _shorter(request: Request, left_out: int) -> Request:
    """Cached tokens stand at the front and stay; what is left out comes after them where it can."""
    prompt = request.prompt_tokens - left_out
    return replace(request, prompt_tokens=prompt, cached_tokens=min(request.cached_tokens, prompt))


def _bytes_factor(step: StepBytes | None, share: float) -> float:
    """Bytes a step reads afterwards, as a share of those before: only weights shrink, K/V stays."""
    if step is None:
        return share
    return (step.weights_bytes * share + step.context_bytes) / step.total_bytes


def batched(request: Request, batch: int, together: float | None = None) -> PhaseTimes:
    """`batch` equal requests at once: prompts one after the other, then one token of each a step.

    `together` is the measured sum of their decode rates; without it the bound of `levers` holds.
    """
    alone = request.times()
    if together is not None:
        return PhaseTimes(alone.prefill_s * batch, batch * request.output_tokens / together)
    computing_s = batch * request.output_tokens * request.prefill.seconds_at(request.mean_depth)
    return PhaseTimes(alone.prefill_s * batch, max(alone.decode_s, min(computing_s, alone.decode_s * batch)))
