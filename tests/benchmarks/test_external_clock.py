"""What a clock at the pipe makes of the lines that arrive, and when it agrees with what is reported."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from benchmarks import machine
from benchmarks.external_clock import Run, Times, agree, reported_times, time_request, times_at_the_pipe


def stream(*tokens: tuple[float, int], accepted_s: float = 10.0) -> Sequence[tuple[float, dict[str, object]]]:
    return [
        (9.0, {"event": "loaded"}),
        (accepted_s, {"event": "accepted"}),
        (10.1, {"event": "prefill", "done": 0, "total": 5}),
        *((at_s, {"event": "token", "n": n}) for at_s, n in tokens),
        (99.0, {"event": "finished"}),
    ]


def test_the_example_of_four_tokens() -> None:
    found = times_at_the_pipe(stream((10.5, 1), (10.6, 1), (10.7, 1), (10.81, 1)))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.itl_s == pytest.approx(0.31 / 3)


def test_text_that_was_held_back_is_no_token() -> None:
    plain = times_at_the_pipe(stream((10.5, 1), (11.0, 1)))
    assert times_at_the_pipe(stream((10.2, 0), (10.5, 1), (11.0, 1), (50.0, 0))) == plain


def test_tokens_that_arrive_together_share_their_time() -> None:
    assert times_at_the_pipe(stream((10.5, 1), (11.5, 4))).itl_s == pytest.approx(0.25)
    assert times_at_the_pipe(stream((10.5, 3), (11.5, 2))).itl_s == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [(), ((10.5, 1),), ((10.5, 0), (10.6, 0))])
def test_nothing_can_be_said_of_fewer_than_two_tokens(tokens: tuple[tuple[float, int], ...]) -> None:
    with pytest.raises(ValueError, match="nothing to time"):
        times_at_the_pipe(stream(*tokens))


def test_a_stream_without_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to time"):
        times_at_the_pipe([(1.0, {"event": "token", "n": 1}), (2.0, {"event": "token", "n": 1})])


@pytest.mark.parametrize(
    ("outside_s", "inside_s", "expected"),
    [
        (0.0149, 0.010, True),
        (0.0151, 0.010, False),
        (0.0051, 0.010, True),
        (1.049, 1.0, True),
        (1.051, 1.0, False),
        (0.949, 1.0, False),
    ],
)
def test_five_milliseconds_or_five_per_cent(outside_s: float, inside_s: float, *, expected: bool) -> None:
    assert agree(outside_s, inside_s) is expected


def test_both_figures_must_agree() -> None:
    inside = Times(1.0, 0.1)
    assert Run(5, 5, Times(1.04, 0.104), inside).agrees
    assert not Run(5, 5, Times(1.06, 0.1), inside).agrees
    assert not Run(5, 5, Times(1.0, 0.106), inside).agrees


def test_reported_times_are_read_as_seconds() -> None:
    document = json.loads('{"timings": {"ttft_ms": 500.0, "itl_ms": {"mean": 103.3}}}')
    assert reported_times(document) == Times(0.5, 0.1033)


def test_a_real_stream_is_timed() -> None:
    with machine.private_environment() as environment:
        found = time_request("smollm2-135m", "Name three colours.", 4, {**environment, "LLMRUN_THREADS": "1"})
    assert found.output_tokens == 4
    assert min(found.outside.ttft_s, found.outside.itl_s, found.inside.ttft_s) > 0
