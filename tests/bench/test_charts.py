"""Which pictures a run holds."""

from __future__ import annotations

from llmrun.bench.charts import charts
from llmrun.reports.bench import Chart

from tests.support.bench import pp, tg


def test_one_place_is_no_picture() -> None:
    assert charts([pp(8), tg(4)]) == ()


def drawn(chart: Chart) -> list[tuple[str, list[tuple[float, float]]]]:
    return [(series.name, [(point.x, point.rate) for point in series.points]) for series in chart.series]


def test_rates_over_depth_with_a_picture_of_each_phase() -> None:
    records = [pp(8, 100.0), tg(4, 10.0), pp(8, 80.0, depth=64), tg(4, 8.0, depth=64)]
    prefill, decode = charts(records)
    assert (prefill.title, decode.title) == ("prefill over depth", "decode over depth")
    assert drawn(prefill) == [("pp8", [(0, 100.0), (64, 80.0)])]
    assert drawn(decode) == [("tg4", [(0, 10.0), (64, 8.0)])]


def test_rates_over_sequences() -> None:
    (chart,) = charts([tg(4, 10.0), tg(4, 32.0, n_parallel=4)])
    assert drawn(chart) == [("tg4", [(1, 10.0), (4, 32.0)])]


def test_what_else_varies_makes_series() -> None:
    records = [tg(4, depth=d, n_threads=t) for t in (1, 2) for d in (0, 8)]
    (chart,) = charts(records)
    assert [series.name for series in chart.series] == ["tg4 t1", "tg4 t2"]


def test_a_disturbed_figure_is_marked() -> None:
    (chart,) = charts([tg(4), tg(4, depth=8, flags=("busy",))])
    assert [point.marked for point in chart.series[0].points] == [False, True]


def test_models_are_named_by_their_quantization() -> None:
    records = [tg(4, 10.0), tg(4, 8.0, model_filename="/b.gguf", model_ref="b", quant="Q8_0")]
    (chart,) = charts(records)
    assert chart.ticks == ("Q4_K_M", "Q8_0")
    assert drawn(chart) == [("tg4", [(0, 10.0), (1, 8.0)])]


def test_different_models_are_not_named_by_their_quantization() -> None:
    other = tg(4, 8.0, model_filename="/x/b.gguf", model_ref="/x/b.gguf", quant="Q8_0", n_params=5)
    (chart,) = charts([tg(4, 10.0), other])
    assert chart.ticks[1] == "b"


def test_models_of_one_quantization_are_named_by_what_the_user_typed() -> None:
    (chart,) = charts([tg(4), tg(4, model_filename="/x/b.gguf", model_ref="/x/b.gguf")])
    assert chart.ticks == ("a", "b")


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    refs = ("/x/b.gguf", "/y/b.gguf")
    (chart,) = charts([tg(4, model_filename=ref, model_ref=ref) for ref in refs])
    assert chart.ticks == refs
