"""Records in each format: llama-bench's keys and layout first, marks everywhere."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from llmrun.bench import export
from llmrun.bench.records import LLAMA_BENCH_KEYS, OWN_KEYS, SAMPLE_KEYS, record_document
from llmrun.reports.bench import BenchReport, BenchTest, Record, Traffic

from tests.support.bench import TIMES, pp, record, tg

BUSY = ("busy", "spread")


def report(*records: Record, complete: bool = True) -> BenchReport:
    return BenchReport("id", records, complete)


def test_keys_are_those_of_llama_bench_and_then_ours() -> None:
    assert list(record_document(pp(8))) == [*LLAMA_BENCH_KEYS, *SAMPLE_KEYS, *OWN_KEYS]
    assert LLAMA_BENCH_KEYS[:2] == ("build_commit", "build_number")
    assert LLAMA_BENCH_KEYS[-4:] == ("avg_ns", "stddev_ns", "avg_ts", "stddev_ts")


def test_values_follow_from_the_samples() -> None:
    document = record_document(record(BenchTest("pp", 100, 0), (50.0, 200.0)))
    assert document["samples_ns"] == [2_000_000_000, 500_000_000]
    assert document["samples_ts"] == [50.0, 200.0]
    assert (document["avg_ns"], document["avg_ts"], document["median_ts"]) == (1_250_000_000, 125.0, 125.0)
    assert document["stddev_ns"] == 1060660171
    assert document["stddev_ts"] == pytest.approx(106.066, abs=1e-3)


def test_a_sum_and_the_speed_of_one() -> None:
    document = record_document(tg(16, 80.0, 80.0, n_parallel=4))
    assert (document["avg_ts"], document["per_request_ts"], document["n_parallel"]) == (80.0, 20.0, 4)


def test_a_request_in_parts() -> None:
    spec = BenchTest("e2e", 100, 101, cache="cold")
    document: dict[str, Any] = record_document(record(spec, (67.0,), request=TIMES))
    assert document["ttft_ms"] == {
        "total": 500.0, "queue": 0.0, "tokenize": 10.0, "prefill": 480.0, "first_sample": 10.0,
    }  # fmt: skip
    assert document["itl_ms"] == {"mean": 25.0, "p50": 24.0, "p90": 30.0, "p99": 40.0, "max": 50.0}
    assert (document["total_ms"], document["load_ms"], document["n_evaluated"]) == (3000.0, 1500.0, 100)


def test_bandwidth() -> None:
    document = record_document(tg(8, traffic=Traffic(4e9, 4e9, 40e9, 50e9, 12.5)))
    assert document["bandwidth_fraction"] == 0.8
    assert (document["bytes_per_step"], document["bandwidth_bytes_per_s"]) == (4_000_000_000, 40_000_000_000)
    assert document["ceiling_ts"] == 12.5
    unknown = record_document(tg(8, traffic=Traffic(4e9, 4e9, 40e9, None, None)))
    assert unknown["bandwidth_fraction"] is None


TABLE = """\
| model                          |       size |     params | backend    | threads |            test |\
                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: |\
 -------------------: |
| llama 8B Q4_K                  |   3.73 GiB |     8.00 B | CPU        |       4 |           pp512 |\
        123.40 ± 0.00 |
| llama 8B Q4_K                  |   3.73 GiB |     8.00 B | CPU        |       4 |           tg128 |\
         11.00 ± 1.41 |

build: 1.2 (abc)
"""


def test_the_table_of_llama_bench_to_the_character() -> None:
    assert export.markdown(report(pp(512, 123.4, 123.4), tg(128, 10.0, 12.0))) == TABLE


@pytest.mark.parametrize(
    ("varied", "column"),
    [
        ({"n_batch": 512}, "n_batch"),
        ({"type_k": "q8_0"}, "type_k"),
        ({"flash_attn": 1}, "fa"),
        ({"n_cpu_moe": 3}, "n_cpu_moe"),
        ({"backends": "CUDA", "n_gpu_layers": 99}, "ngl"),
    ],
)
def test_a_setting_has_a_column_where_it_departs(varied: dict[str, Any], column: str) -> None:
    assert column not in export.table([pp(8)]).names
    assert column in export.table([pp(8), pp(8, **varied)]).names


def test_our_columns_come_with_what_they_show() -> None:
    assert export.table([pp(8)]).names[-1] == "t/s"
    assert export.table([tg(8, n_parallel=2)]).names[-1] == "t/s each"
    cells = export.table([pp(8), record(BenchTest("e2e", 100, 9, cache="cold"), request=TIMES)])
    assert cells.names[-2:] == ("ttft ms", "itl ms")
    assert (tuple(cells.rows[0][-2:]), tuple(cells.rows[1][-2:])) == (("", ""), ("500.0", "25.00"))


def test_a_disturbed_figure_is_marked_in_every_format() -> None:
    one = pp(8, flags=BUSY)
    assert "[busy, spread]" in export.markdown(report(one))
    assert '"[""busy"", ""spread""]"' in export.csv_line(one)
    assert json.loads(export.json_line(one))["flags"] == [*BUSY]
    assert json.loads(export.json_array(report(one)))[0]["flags"] == [*BUSY]
    assert export.bench_document(report(one), {})["records"][0]["flags"] == [*BUSY]  # type: ignore[index]


def test_an_interrupted_run_is_marked_in_every_format() -> None:
    cut = report(pp(8), complete=False)
    assert "incomplete" in export.markdown(cut)
    assert json.loads(export.json_array(cut))[0]["flags"] == [export.INCOMPLETE]
    assert export.bench_document(cut, {})["complete"] is False


def test_csv_can_be_read_back() -> None:
    records = [pp(8, 5.0, 6.0, model_ref='a "quoted", name'), tg(4)]
    text = export.csv_header() + "".join(map(export.csv_line, records))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["test"] for row in rows] == ["pp8", "tg4"]
    assert rows[0]["model_ref"] == 'a "quoted", name'
    assert rows[0]["avg_ts"] == "5.500000"
    assert json.loads(rows[0]["samples_ts"]) == [5.0, 6.0]
    assert (rows[0]["cpu_strict"], rows[0]["repack"], rows[0]["gpu_info"]) == ("0", "1", "")


def test_nothing_measured_is_no_table() -> None:
    assert export.markdown(report(complete=False)) == ""


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    lines = export.markdown(report(pp(8, model_type="a|b"))).splitlines()
    assert lines[2].count("|") == lines[0].count("|")
