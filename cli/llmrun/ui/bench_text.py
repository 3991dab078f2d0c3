"""What the figures of a benchmark mean, as sentences: bandwidth, intensity, the verdict, the marks."""

from __future__ import annotations

from llmrun.reports.bench import BenchReport, LeverGain, Record, RequestTimes, Verdict
from llmrun.ui.visible import one_line
from llmrun.units import format_bandwidth, format_bytes, format_count, format_rate, format_seconds

_LEVERS = {
    "quantization": "a quantization of half the size",
    "shorter_prompt": "half the prompt",
    "prefix_cache": "a cached prefix",
    "batching": "{value} requests at once (their sum)",
    "speculation": "speculation with drafts of {value}",
}
_FLAGS = {
    "busy": "other programs were computing",
    "steal": "the hypervisor gave CPU time to others",
    "run_queue": "something waited for a CPU",
    "throttled": "the processor was throttled",
    "spread": "the samples spread by more than 5%",
    "interrupted": "stopped before all repetitions",
}

_PRECISE = 0.1
"""Shares from here on are told in whole percents."""


def measured_text(record: Record) -> str:
    """A test that is complete, on one line."""
    spread = record.spread
    marks = f" [{', '.join(record.flags)}]" if record.flags else ""
    return f"{record.test.name}: {spread.mean:.2f} ± {spread.stddev:.2f} tok/s{marks}"


def summary(report: BenchReport) -> list[str]:
    """Requests, memory, bandwidth, intensity, verdicts, and what the marks mean, a sentence each."""
    lines = [_request(record.test.name, record.request) for record in report.records if record.request]
    lines += _memory(report)
    lines += [_bandwidth(record, busy=report.bandwidth_busy) for record in _decodes(report)[:1]]
    lines += [_intensity(record) for record in _prefills(report)[:1]]
    for verdict in report.verdicts:
        lines += _verdict(verdict)
    flags = list(dict.fromkeys(flag for record in report.records for flag in record.flags))
    lines += [f"[{flag}]: {_FLAGS[flag]}" for flag in flags if flag in _FLAGS]
    if any(record.spread.outliers for record in report.records):
        lines.append("some samples lie far from the others; the JSON names them (outliers)")
    if not report.complete:
        why = "the run was interrupted" if report.failure is None else one_line(report.failure.message)
        lines.append(f"incomplete: {why}")
    return lines


def _request(name: str, times: RequestTimes) -> str:
    """What a user waits for."""
    parts = (
        ("queue", times.queue_s), ("tokenise", times.tokenize_s), ("prefill", times.prefill_s),
        ("first sample", times.first_sample_s),
    )  # fmt: skip
    split = ", ".join(f"{part} {format_seconds(time_s)}" for part, time_s in parts)
    said = f"{name}: TTFT {format_seconds(times.ttft_s)} ({split})"
    if times.itl is not None:
        itl = times.itl
        shares = (("p50", itl.p50_s), ("p90", itl.p90_s), ("p99", itl.p99_s), ("max", itl.max_s))
        percentiles = ", ".join(f"{share} {format_seconds(time_s)}" for share, time_s in shares)
        said += f"; ITL {format_seconds(itl.mean_s)} ({percentiles})"
    return f"{said}; total {format_seconds(times.total_s)}"


def _memory(report: BenchReport) -> list[str]:
    """The most of any test; of devices only where one holds something."""
    held = [r.memory.peak_rss_bytes for r in report.records if r.memory.peak_rss_bytes is not None]
    devices = [r.memory.peak_device_bytes for r in report.records if r.memory.peak_device_bytes]
    if not held:
        return []
    beside = f", {format_bytes(max(devices))} on other devices" if devices else ""
    return [f"most memory of the process: {format_bytes(max(held))}{beside}"]


def _decodes(report: BenchReport) -> list[Record]:
    return [r for r in report.records if r.test.kind == "tg" and r.traffic is not None]


def _prefills(report: BenchReport) -> list[Record]:
    return [r for r in report.records if r.test.kind == "pp" and r.subject.model_bytes]


def _bandwidth(record: Record, *, busy: bool) -> str:
    traffic = record.traffic
    assert traffic is not None
    read = (
        f"{record.test.name} reads {format_bytes(traffic.bytes_per_step)} a step, "
        f"{format_bandwidth(traffic.bytes_per_s)}"
    )
    if traffic.fraction is None or traffic.ceiling_rate is None or traffic.machine_bytes_per_s is None:
        return read
    machine = f"the {format_bandwidth(traffic.machine_bytes_per_s)} that this machine reads"
    doubt = f" (measured while {_FLAGS['busy']})" if busy else ""
    allowed = format_rate(traffic.ceiling_rate)
    share = f"{traffic.fraction:.{0 if traffic.fraction >= _PRECISE else 1}%}"
    return f"{read}: {share} of {machine}{doubt}, which would allow {allowed}"


def _intensity(record: Record) -> str:
    subject = record.subject
    together = min(record.test.n_parallel * record.test.n_prompt, subject.n_ubatch)
    each = 2 * subject.n_params / subject.model_bytes
    return (
        f"prefill multiplies each weight it reads with {format_count(together)} tokens, about "
        f"{each * together:,.0f} operations a byte; decode with one, about {each:.{0 if each >= 1 else 1}f}"
    )


def _verdict(verdict: Verdict) -> list[str]:
    total_s = verdict.prefill_s + verdict.decode_s
    said = (
        f"{one_line(verdict.model)}: {format_count(verdict.prompt_tokens)} prompt and "
        f"{format_count(verdict.output_tokens)} output tokens take {format_seconds(total_s)}, "
        f"{verdict.share:.0%} of it {verdict.phase}"
    )
    if not verdict.levers:
        return [said]
    return [said, f"what would make it faster: {'; '.join(map(_lever, verdict.levers))}"]


def _lever(lever: LeverGain) -> str:
    most = "at most " if lever.bound else ""
    return f"{_LEVERS[lever.kind].format(value=lever.value)}: {most}×{lever.gain:.2f}"
