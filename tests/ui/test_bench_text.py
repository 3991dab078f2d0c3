"""Sentences about a benchmark."""

from __future__ import annotations

from dataclasses import replace

from llmrun.errors import DoesNotFit
from llmrun.reports.bench import BenchReport, BenchTest, Memory, Record, Traffic
from llmrun.ui.bench_text import measured_text, summary
from llmrun.units import MIB

from tests.support.bench import TIMES, pp, tg


def lines(*records: Record, **changed: object) -> list[str]:
    return summary(replace(BenchReport("id", records, complete=True), **changed))  # type: ignore[arg-type]


def test_a_request_is_told_with_the_parts_of_its_ttft_and_percentiles() -> None:
    asked = replace(pp(8), test=BenchTest("e2e", 100, 128, cache="cold"), request=TIMES)
    assert lines(asked)[0] == (
        "run 100+128: TTFT 500 ms (queue 0 ms, tokenise 10 ms, prefill 480 ms, first sample 10 ms); "
        "ITL 25 ms (p50 24 ms, p90 30 ms, p99 40 ms, max 50 ms); total 3000 ms"
    )
    assert "ITL" not in lines(replace(asked, request=replace(TIMES, itl=None)))[0]


def test_memory_is_the_most_of_any_test() -> None:
    small = replace(pp(8), memory=Memory(100 * MIB))
    large = replace(tg(4), memory=Memory(300 * MIB, {"GPU": 50 * MIB}, 50 * MIB))
    (said,) = [line for line in lines(small, large) if "memory of the process" in line]
    assert "300.0 MiB" in said
    assert "50.0 MiB on other devices" in said
    (said,) = [line for line in lines(small) if "memory of the process" in line]
    assert "other devices" not in said
    unknown = replace(small, memory=Memory(None))
    assert not any("memory of the process" in line for line in lines(unknown))


def test_a_bandwidth_measured_beside_other_programs_is_doubted() -> None:
    decode = replace(tg(4), traffic=Traffic(100 * MIB, 90 * MIB, 400 * MIB, 40_000 * MIB, 400.0))
    for busy in (False, True):
        (said,) = [line for line in lines(decode, bandwidth_busy=busy) if "a step" in line]
        assert ("other programs" in said) is busy
        assert "1.0% of" in said


def test_marks_are_named_in_the_line_and_explained_once() -> None:
    marked = replace(tg(4), flags=("busy", "spread"))
    assert measured_text(marked).endswith("[busy, spread]")
    assert [line.startswith(("[busy]", "[spread]")) for line in lines(marked, marked)].count(True) == 2


def test_why_a_run_is_not_complete() -> None:
    assert lines(pp(8), complete=False)[-1] == "incomplete: the run was interrupted"
    assert lines(pp(8), complete=False, failure=DoesNotFit("no \x1broom"))[-1].startswith("incomplete: no ")
    assert "\x1b" not in lines(pp(8), complete=False, failure=DoesNotFit("no \x1broom"))[-1]
