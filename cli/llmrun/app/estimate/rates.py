"""The rates of a model on this machine, from what was measured before or from a short measurement now.

Three sources, the best first: benchmarks, real requests in the request log, and a measurement of a few
seconds. Requests of the log are put together by the depth of their context, each with the weight of its
tokens; those of other settings than the newest one say nothing about the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmrun.app.bench.machine import Watch
from llmrun.bench.disturbance import BUSY_CORES
from llmrun.bench.estimate import RateCurve, RatePoint
from llmrun.engine.api import Engine
from llmrun.errors import DoesNotFit, Interrupted
from llmrun.events import ModelInfo
from llmrun.metrics.clock import Clock
from llmrun.reports.estimate import RateSource
from llmrun.units import format_count, format_counted

Record = Mapping[str, Any]
From = Literal["bench", "log", "measure"]
"""The sources, as a user names them."""

_LEAST_PREFILL, _LEAST_DECODE = 64, 8
"""Tokens of a request below which its rate says little: small batches and single steps."""
_REQUESTS = 200
_SAME = ("n_threads", "n_gpu_layers_offloaded", "type_k", "type_v", "flash_attn")
_BENCH_SAME = (
    "build_commit", "cpu_info", "gpu_info", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v",
    "n_gpu_layers", "flash_attn",
)  # fmt: skip
_BENCH_TEST = ("kind", "n_prompt", "n_gen", "n_depth", "n_parallel")
_BIN_TOKENS = 256
_WARM_UP, _STEPS, _LEAST_STEPS = 8, 24, 4
_PATIENCE_S, _STEP_PATIENCE_S = 5.0, 2.0
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Rates:
    """Both phases over depth, None where nothing is known of one. `note` tells where they come from.

    `together`: the measured sum of the decode rates of so many sequences.
    """

    source: RateSource
    prefill: RateCurve | None
    decode: RateCurve | None
    note: str
    together: Mapping[int, float] = field(default_factory=dict)


def from_log(records: Sequence[Record], model: ModelInfo) -> Rates | None:
    """Rates of the newest requests to this model; None without any that say something."""
    wanted = {"name": model.name, "arch": model.arch, "quant": model.quant, "size_bytes": model.size_bytes}
    own = [r for r in records if r.get("model") == wanted and _is_request(r)]
    if not own:
        return None
    settings = _settings(own[-1])
    alike = [record for record in own if _settings(record) == settings][-_REQUESTS:]
    prefill, decode = RateCurve.through(_log_prefill(alike)), RateCurve.through(_log_decode(alike))
    if prefill is None and decode is None:
        return None
    last = str(alike[-1].get("time", ""))[:10]
    requests = format_counted(len(alike), "request")
    return Rates("log", prefill, decode, f"from {requests} in the request log, the last on {last}")


def _is_request(record: Record) -> bool:
    return isinstance(record.get("timings"), dict) and isinstance(record.get("usage"), dict)


def _settings(record: Record) -> tuple[object, ...]:
    settings = record.get("settings")
    return tuple(settings.get(name) for name in _SAME) if isinstance(settings, dict) else ()


def _log_prefill(records: Iterable[Record]) -> Iterator[RatePoint]:
    spans = []
    for record in records:
        timings = record["timings"]
        count, taken_s = _number(timings, "prompt_n"), _number(timings, "prompt_ms") / 1000
        if count >= _LEAST_PREFILL and taken_s > 0:
            spans.append((_number(timings, "cache_n") + count / 2, count, taken_s))
    return _binned(spans)


def _log_decode(records: Iterable[Record]) -> Iterator[RatePoint]:
    spans = []
    for record in records:
        timings = record["timings"]
        gaps, taken_s = _number(timings, "predicted_n") - 1, _number(timings, "predicted_ms") / 1000
        if gaps >= _LEAST_DECODE and taken_s > 0:
            spans.append((_number(record["usage"], "prompt_tokens") + gaps / 2, gaps, taken_s))
    return _binned(spans)


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def _binned(spans: Iterable[tuple[float, float, float]]) -> Iterator[RatePoint]:
    """(depth, tokens, seconds) of many requests as a point for each doubling of depth."""
    bins: dict[int, list[tuple[float, float, float]]] = {}
    for span in spans:
        bins.setdefault((1 + int(span[0]) // _BIN_TOKENS).bit_length(), []).append(span)
    for members in bins.values():
        tokens = sum(count for _, count, _ in members)
        depth = sum(at * count for at, count, _ in members) / tokens
        yield RatePoint(depth, tokens / sum(taken_s for *_, taken_s in members))


def from_bench(records: Sequence[Record], is_model: Callable[[Record], bool]) -> Rates | None:
    """Rates of the newest benchmarks of a model, by test and depth; `is_model` knows its records.

    A test that ran several times counts as it ran last.
    """
    own = [record for record in filter(is_model, records) if record.get("kind") in ("pp", "tg")]
    newest: dict[tuple[object, ...], Record] = {}
    for record in own:
        if _values(record, _BENCH_SAME) == _values(own[-1], _BENCH_SAME):
            newest[_values(record, _BENCH_TEST)] = record
    alone = [record for record in newest.values() if record.get("n_parallel") == 1]
    prefill = RateCurve.through(_bench_point(r) for r in alone if r["kind"] == "pp")
    decode = RateCurve.through(_bench_point(r) for r in alone if r["kind"] == "tg")
    if prefill is None and decode is None:
        return None
    together = {
        int(_number(record, "n_parallel")): _number(record, "avg_ts")
        for record in newest.values()
        if record["kind"] == "tg" and _number(record, "n_parallel") > 1 and not _number(record, "n_depth")
    }
    last = max(str(record.get("test_time", "")) for record in alone)[:10]
    marked = any(record.get("flags") for record in alone)
    note = f"from benchmarks, the last on {last}" + (", some disturbed by other programs" if marked else "")
    return Rates("bench", prefill, decode, note, together)


def _values(record: Record, keys: Sequence[str]) -> tuple[object, ...]:
    return tuple(record.get(key) for key in keys)


def _bench_point(record: Record) -> RatePoint:
    counts = _number(record, "n_prompt") + _number(record, "n_gen")
    return RatePoint(_number(record, "n_depth") + counts / 2, _number(record, "avg_ts"))


def measure(engine: Engine, clock: Clock, deepest: int) -> Rates:
    """Measure for a few seconds: decode near depth 0, prefill slice by slice, decode where that ended.

    Args:
        deepest: tokens of prompt up to which prefill is followed, as far as patience and context go.

    Raises:
        Interrupted: the engine was told to stop.
        DoesNotFit: its cache has no room.
    """
    facts = engine.facts
    tokens = random.Random(0)
    room = facts.n_ctx_seq - _WARM_UP - 2 * _STEPS
    held = 0

    def feed(count: int) -> float:
        nonlocal held
        pairs = [(0, tokens.randrange(facts.n_vocab)) for _ in range(count)]
        before_s = clock()
        result = engine.feed(pairs)
        if result == "aborted":
            raise Interrupted("interrupted while measuring")
        if result != "ok":
            raise DoesNotFit("the context has no room for a measurement", "use a larger -c")
        held += count
        return max(clock() - before_s, _LEAST_S)

    def step_rate() -> RatePoint:
        feed(1)  # what a new batch size makes the engine do once
        start, taken_s = held, 0.0
        while held - start < _LEAST_STEPS or (held - start < _STEPS and taken_s < _STEP_PATIENCE_S):
            taken_s += feed(1)
        return RatePoint((start + held) / 2, (held - start) / taken_s)

    watch = Watch()
    feed(_WARM_UP)
    decode = [step_rate()]
    held = engine.rewind(0, 0)
    began_s, prefill = clock(), []
    while held < min(deepest, room) and clock() - began_s < _PATIENCE_S:
        count = min(facts.n_ubatch, room - held)
        prefill.append(RatePoint(held + count / 2, count / feed(count)))
    decode.append(step_rate())
    others = watch.lap().others_cores or 0.0
    busy = f", too low: other programs used {others:.1f} cores meanwhile" if others > BUSY_CORES else ""
    note = f"measured now, over {format_count(held)} tokens{busy}"
    return Rates("measured", RateCurve.through(prefill), RateCurve.through(decode), note)
