"""Times from rates: the worked examples, the laws of the sums, and what each lever can and cannot do."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.bench.estimate import RateCurve, RatePoint, Request, StepBytes, batched, levers
from llmrun.reports.estimate import Ceiling, Lever

RATES = st.floats(0.01, 1e6)
COUNTS = st.integers(0, 200_000)
POINTS = st.lists(st.builds(RatePoint, st.floats(0, 1e5).map(lambda d: round(d, 1)), RATES), min_size=1)


def curve(*points: tuple[float, float]) -> RateCurve:
    made = RateCurve.through(RatePoint(depth, rate) for depth, rate in points)
    assert made is not None
    return made


@st.composite
def curves(draw: st.DrawFn) -> RateCurve:
    made = RateCurve.through(draw(POINTS))
    assert made is not None
    return made


@st.composite
def requests(draw: st.DrawFn) -> Request:
    prompt = draw(COUNTS)
    return Request(prompt, draw(COUNTS), draw(curves()), draw(curves()), draw(st.integers(0, prompt)))


def at_rates(prompt: int, prefill: float, output: int, decode: float) -> Request:
    return Request(prompt, output, RateCurve.constant(prefill), RateCurve.constant(decode))


@pytest.mark.parametrize(
    ("request_", "prefill_s", "decode_s", "decode_percent"),
    [
        (at_rates(1000, 2000, 300, 40), 0.5, 7.5, 94),
        (at_rates(12_000, 1500, 500, 40), 8.0, 12.5, 61),
    ],
)
def test_worked_examples(request_: Request, prefill_s: float, decode_s: float, decode_percent: int) -> None:
    times = request_.times()
    assert (times.prefill_s, times.decode_s, times.total_s) == (prefill_s, decode_s, prefill_s + decode_s)
    assert round(100 * times.decode_share) == decode_percent
    assert round(100 * times.prefill_share) == 100 - decode_percent
    assert times.ttft_s == prefill_s


def test_the_bandwidth_bound() -> None:
    assert Ceiling(8e9, 400e9, "given").rate == 50.0


@given(requests())
def test_shares_are_parts_of_a_whole(request_: Request) -> None:
    times = request_.times()
    whole = 1.0 if request_.prompt_tokens or request_.output_tokens else 0.0
    assert times.prefill_share + times.decode_share == pytest.approx(whole)
    assert times.prefill_share >= 0
    assert times.decode_share >= 0


@given(requests(), st.integers(1, 5000))
def test_more_tokens_take_longer(request_: Request, more: int) -> None:
    now = request_.times()
    assert replace(request_, output_tokens=request_.output_tokens + more).times().total_s > now.total_s
    cold = replace(request_, cached_tokens=0)
    longer = replace(cold, prompt_tokens=request_.prompt_tokens + more)
    assert longer.times().prefill_s > cold.times().prefill_s


@given(requests())
def test_cached_tokens_never_cost(request_: Request) -> None:
    cold = replace(request_, cached_tokens=0).times()
    assert request_.times().total_s <= cold.total_s * (1 + 1e-9)
    assert request_.times().decode_s == cold.decode_s


def test_a_whole_cached_prompt_still_evaluates_its_last_token() -> None:
    request = replace(at_rates(100, 50, 0, 1), cached_tokens=100)
    assert request.prefill_tokens == 1
    assert request.times().prefill_s == 1 / 50


@given(curves(), st.floats(0, 1e5))
def test_time_of_a_token_lies_between_its_neighbours(made: RateCurve, depth: float) -> None:
    seconds = made.seconds_at(depth)
    assert seconds > 0
    for left, right in pairwise(made.points):
        if left.depth <= depth <= right.depth:
            low, high = sorted((1 / left.rate, 1 / right.rate))
            assert low * (1 - 1e-9) <= seconds <= high * (1 + 1e-9)


@given(curves())
def test_measured_points_come_back(made: RateCurve) -> None:
    for point in made.points:
        assert 1 / made.seconds_at(point.depth) == pytest.approx(point.rate)


@given(curves(), st.floats(0, 1e5), st.floats(0, 1e4), st.floats(0, 1e4))
def test_times_of_parts_add_up(made: RateCurve, start: float, first: float, second: float) -> None:
    parts = made.seconds(start, first) + made.seconds(start + first, second)
    assert made.seconds(start, first + second) == pytest.approx(parts, rel=1e-6, abs=1e-9)


def test_interpolation_is_linear_in_time_not_in_rate() -> None:
    made = curve((0, 100), (1000, 50))
    assert 1 / made.seconds_at(500) == pytest.approx(2 / (1 / 100 + 1 / 50))
    assert made.seconds(0, 1000) == pytest.approx(1000 * (0.01 + 0.02) / 2)


def test_beyond_the_deepest_point_the_line_goes_on_and_never_falls() -> None:
    assert 1 / curve((0, 100), (1000, 50)).seconds_at(2000) == pytest.approx(1 / 0.03)
    assert curve((0, 50), (1000, 100)).seconds_at(9000) == 1 / 100


def test_a_depth_measured_often_counts_with_its_median() -> None:
    assert curve((5, 10), (5, 1000), (5, 20)).points == (RatePoint(5, 20),)
    assert RateCurve.through([RatePoint(1, 0.0)]) is None


def test_depths_near_each_other_tell_no_slope() -> None:
    made = curve((0.5, 60), (4.5, 20), (100, 40))
    assert {made.seconds_at(depth) for depth in (0, 4.5, 5000)} == {1 / 40}
    assert len(curve((0, 60), (200, 50), (1000, 40)).points) == 3


def by_kind(request: Request, *, step: StepBytes | None = None, share: float = 0.5) -> dict[str, Lever]:
    found = levers(request, retrieved_tokens=request.prompt_tokens, quant=("Q4_0", share), batch=4, step=step)
    return {lever.kind: lever for lever in found}


@st.composite
def falling_requests(draw: st.DrawFn) -> Request:
    """As on any machine: a token never gets faster with the depth of its context."""
    request = draw(requests())

    def falling(made: RateCurve) -> RateCurve:
        rates = sorted((point.rate for point in made.points), reverse=True)
        return RateCurve(tuple(map(RatePoint, (point.depth for point in made.points), rates)))

    return replace(request, prefill=falling(request.prefill), decode=falling(request.decode))


@given(falling_requests())
def test_levers_pull_in_the_right_direction(request_: Request) -> None:
    now = request_.times()
    found = by_kind(request_)
    for kind, lever in found.items():
        assert lever.times.total_s <= lever.before_s * (1 + 1e-6), kind
    if "prefix_cache" in found:
        assert found["prefix_cache"].times.decode_s == now.decode_s
    if "quantization" in found:
        assert found["quantization"].times.prefill_s == now.prefill_s


def test_half_the_bytes_halve_decode_and_nothing_else() -> None:
    lever = by_kind(at_rates(1000, 2000, 300, 40))["quantization"]
    assert (lever.times.prefill_s, lever.times.decode_s) == (0.5, 3.75)


def test_a_smaller_quantization_leaves_the_cache_as_large_as_it_is() -> None:
    request = at_rates(900, 1000, 200, 10)
    lever = by_kind(request, step=StepBytes(1e6, 1e6))["quantization"]
    assert lever.times.decode_s == pytest.approx(20 * 1.5 / 2)


def test_only_the_part_that_reads_memory_shrinks() -> None:
    request = at_rates(0, 1, 100, 10)
    found = levers(request, retrieved_tokens=0, quant=("Q4_0", 0.5), batch=1, memory_share=0.4)
    assert [lever.times.decode_s for lever in found] == [pytest.approx(10 * (1 - 0.4 / 2))]


def test_half_the_retrieved_text() -> None:
    request = at_rates(12_000, 1500, 500, 40)
    found = {lever.kind: lever for lever in levers(request, retrieved_tokens=9000, quant=("", 0.5), batch=1)}
    assert found["half_retrieved"].value == "4500"
    assert found["half_retrieved"].times.prefill_s == 5.0
    assert "batch" not in found


def test_a_batch_shares_the_weights_until_it_has_to_compute() -> None:
    request = at_rates(0, 1000, 100, 10)
    assert batched(request, 8).decode_s == 10.0  # the time of one
    assert batched(request, 1000).decode_s == 100.0  # 100,000 tokens at the prefill rate
    lever = by_kind(request)["batch"]
    assert (lever.requests, lever.before_s, lever.gain) == (4, 40.0, 4.0)


def test_a_measured_batch_counts_instead_of_the_bound() -> None:
    request = at_rates(0, 1000, 100, 10)
    assert batched(request, 8, together=20).decode_s == 40.0


@given(requests(), st.integers(1, 64))
def test_a_batch_is_never_slower_than_its_requests_in_turn(request_: Request, batch: int) -> None:
    together = batched(request_, batch)
    assert together.total_s <= request_.times().total_s * batch * (1 + 1e-9)
    assert together.decode_s >= request_.times().decode_s
    assert math.isfinite(together.total_s)
