"""What `llmrun bench` measures, as values: made by `bench` and `app`, shown by `ui`.

Times are seconds unless the name says otherwise, rates tokens a second, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llmrun.errors import LlmrunError
from llmrun.events import ItlStats

TestKind = Literal["pp", "tg", "pg", "e2e"]
CacheState = Literal["empty", "cold", "cached"]
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class BenchTest:
    """One test: tokens of prompt and output of each of `n_parallel` sequences, after `n_depth` held ones.

    `kind` "e2e" is a whole request; `cache` says what the K/V cache held before: nothing ("empty" where
    nothing could be reused anyway), or, for requests, nothing of the prompt ("cold") or all of it ("cached").
    `n_cached` prompt tokens were held, and no rate counts them.
    """

    kind: TestKind
    n_prompt: int
    n_gen: int
    n_depth: int = 0
    n_parallel: int = 1
    cache: CacheState = "empty"
    n_cached: int = 0

    @property
    def name(self) -> str:
        """As llama-bench writes it: `pp512`, `tg128`, `pp512+tg128`, `pp512 @ d1024`; ours go on ` x4`."""
        if self.kind == "e2e":
            return f"run {self.n_prompt}+{self.n_gen}" + (" cached" if self.cache == "cached" else "")
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        depth = f" @ d{self.n_depth}" if self.n_depth else ""
        return "+".join(parts) + depth + (f" x{self.n_parallel}" if self.n_parallel > 1 else "")

    @property
    def n_tokens(self) -> int:
        """Tokens that a repetition evaluates or makes, over all sequences."""
        return self.n_parallel * (self.n_prompt - self.n_cached + self.n_gen)

    @property
    def cells(self) -> int:
        """Positions a sequence needs."""
        return self.n_depth + self.n_prompt + self.n_gen


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the rates of a test. `outliers` are indices of samples far from the others by MAD."""

    mean: float
    stddev: float
    median: float
    outliers: tuple[int, ...]

    @property
    def relative(self) -> float:
        """Standard deviation as a share of the mean."""
        return self.stddev / self.mean if self.mean else 0.0


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A request's time as a user feels it; each figure is the median over the repetitions.

    `ttft_s` = queue + tokenise + prefill + first sample, all of the same repetition. `evaluated` are prompt
    tokens that were not cached, the same in every repetition, else -1.
    """

    ttft_s: float
    queue_s: float
    tokenize_s: float
    prefill_s: float
    first_sample_s: float
    total_s: float
    itl: ItlStats | None
    load_s: float
    evaluated: int
    cached: int
    prefill_rate: float | None
    generation_rate: float | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What decode reads a step, `weights_per_step` bytes of it weights, and how fast: `fraction` of the
    machine's measured read bandwidth, and the rate at which all of it would be used. None where the bandwidth
    is not known."""

    bytes_per_step: float
    weights_per_step: float
    bytes_per_s: float
    machine_bytes_per_s: float | None
    ceiling_rate: float | None

    @property
    def fraction(self) -> float | None:
        """Share of the machine's bandwidth; above 1 where caches hold part of what is read."""
        return self.bytes_per_s / self.machine_bytes_per_s if self.machine_bytes_per_s else None


@dataclass(frozen=True, slots=True)
class Memory:
    """Most main memory this process held, and what the engine reserved on each device."""

    peak_rss_bytes: int | None
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    peak_device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Quiet:
    """How quiet the machine was; see `bench/disturbance.py`. None: the system does not tell."""

    others_cores: float | None
    steal_share: float | None
    run_queue_share: float | None
    throttled: bool


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured: build, machine, model, and the settings of its group, under llama-bench's names."""

    build: str
    backends: str
    cpu_info: str
    gpu_info: str
    model_filename: str
    model_ref: str
    model_type: str
    model_bytes: int
    n_params: int
    model_digest: str
    quant: str
    n_batch: int
    n_ubatch: int
    n_threads: int
    type_k: str
    type_v: str
    n_gpu_layers: int
    n_gpu_layers_offloaded: int
    n_cpu_moe: int
    main_gpu: int
    no_kv_offload: bool
    flash_attn: int
    flash_attn_used: str
    tensor_split: str
    overrides: str
    load_mode: str
    repack: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One test with every raw sample. `flags` mark a figure that something may have disturbed."""

    subject: Subject
    test: BenchTest
    test_time: str
    samples_ns: tuple[int, ...]
    spread: Spread
    memory: Memory
    quiet: Quiet
    flags: tuple[str, ...] = ()
    traffic: Traffic | None = None
    request: RequestTimes | None = None

    @property
    def samples_ts(self) -> tuple[float, ...]:
        """Tokens a second of each repetition, over all sequences."""
        return tuple(1e9 * self.test.n_tokens / taken for taken in self.samples_ns)

    @property
    def per_request_rate(self) -> float:
        """What one of the parallel sequences gets."""
        return self.spread.mean / self.test.n_parallel


@dataclass(frozen=True, slots=True)
class LeverGain:
    """A change and how many times as fast the whole use would be, at most where `bound` says so."""

    kind: Literal["quantization", "shorter_prompt", "prefix_cache", "batching", "speculation"]
    value: str
    gain: float
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which phase a use of so many tokens waits for, and what would change that, most effective first."""

    model: str
    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    decode_s: float
    levers: tuple[LeverGain, ...]

    @property
    def phase(self) -> Phase:
        """The one that takes longer."""
        return "prefill" if self.prefill_s > self.decode_s else "decode"

    @property
    def share(self) -> float:
        """Share of the total that phase takes."""
        return max(self.prefill_s, self.decode_s) / (self.prefill_s + self.decode_s)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All tests of a run. `complete` is False where it was interrupted or ended by `failure`.

    `bandwidth_busy`: other programs may have made the machine's bandwidth too low when it was measured.
    """

    run_id: str
    records: tuple[Record, ...]
    complete: bool
    verdicts: tuple[Verdict, ...] = ()
    bandwidth_bytes_per_s: float | None = None
    bandwidth_measured_at: str = ""
    bandwidth_busy: bool = False
    failure: LlmrunError | None = None


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """`done` of `total` tests are measured; `label` is what goes on now. `left_s` None: not known yet."""

    done: int
    total: int
    label: str
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A test is complete."""

    record: Record


@dataclass(frozen=True, slots=True)
class BenchFinished:
    """The run ended."""

    report: BenchReport


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as llama-bench lays them out: names, minimum widths (negative: to the left), rows of text.

    `marks` name what may have disturbed a row, empty for most.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    rows: tuple[Sequence[str], ...]
    marks: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A rate and its standard deviation at place `x`. `marked`: something may have disturbed it."""

    x: float
    rate: float
    stddev: float = 0.0
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Rates over what varies, in order."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of rates. `ticks` name the places 0, 1, ... where they are no numbers."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()
