"""What happens during one request, as values: the only thing that travels up to the user interface.

A request yields `Loaded` (once a process), `Accepted`, then `PrefillProgress` per slice, `Prefilled`,
`Token` as text becomes final, and ends with exactly one `Finished`. `Notice` may come at any time.
Times are seconds on the process clock, sizes are bytes, rates are tokens a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context", "interrupted"]
TextKind = Literal["answer", "reasoning"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model answered. `ref` is what the user typed, `quant` the file's quantization label."""

    ref: str
    path: str
    name: str
    arch: str
    quant: str
    size_bytes: int

    @property
    def title(self) -> str:
        """What the user called it, a file without its folders, and its quantization once."""
        name = self.ref.replace("\\", "/").rsplit("/", 1)[-1]
        return name if self.quant.lower() in name.lower() else f"{name} {self.quant}".strip()


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """Where a model lies on the Hub of which only the header was read.

    `name` is how `llmrun pull` fetches it. `files` are paths in the repository; `received_bytes` came over
    the network for the header, 0 from the cache.
    """

    repo: str
    commit: str
    name: str
    files: tuple[str, ...]
    received_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceKv:
    """K/V cache bytes on one device: what the engine allocated, and the share that is held."""

    device: str
    allocated_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class KvUse:
    """K/V cache after a request. `tokens` positions are held; the last sampled token is not among them."""

    tokens: int
    capacity_tokens: int
    type_k: str
    type_v: str
    devices: tuple[DeviceKv, ...]

    @property
    def allocated_bytes(self) -> int:
        """Bytes the context reserved, over all devices."""
        return sum(d.allocated_bytes for d in self.devices)

    @property
    def used_bytes(self) -> int:
        """The share of them that the held positions take."""
        return sum(d.used_bytes for d in self.devices)


@dataclass(frozen=True, slots=True)
class ItlStats:
    """Inter-token latency of one request in seconds; the mean leaves the first token out."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """The two phases of one request, measured. Definitions: docs/reference/metrics.md.

    `prefill_tokens` = prompt - cached, at least 1. `generation_rate` is None for a single token,
    `prefill_rate` is None where no time passed or the prefill was cut short. `ttft_answer_s` is None while
    only reasoning came. Without any token `total_s` ends where the request ended.
    """

    load_s: float
    queue_s: float
    tokenize_s: float
    prefill_s: float
    ttft_s: float | None
    ttft_answer_s: float | None
    generation_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int
    itl: ItlStats | None
    prefill_complete: bool = True

    @property
    def first_sample_s(self) -> float | None:
        """The rest of TTFT: from the end of prefill to the first token."""
        if self.ttft_s is None:
            return None
        return self.ttft_s - self.queue_s - self.tokenize_s - self.prefill_s

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens to evaluate; never counts cached ones."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def prefill_rate(self) -> float | None:
        """Prompt-eval rate in tok/s; None for a prefill that was cut short, whose share is not known."""
        return self.prefill_tokens / self.prefill_s if self.prefill_complete and self.prefill_s > 0 else None

    @property
    def generation_rate(self) -> float | None:
        """(n-1) / (last token - first token), in tok/s."""
        n = self.generated_tokens
        return (n - 1) / self.generation_s if n > 1 and self.generation_s > 0 else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a prompt parts from the stored sequence most like it: after `token` tokens ending in `before`.

    `stored` and `prompt` are the texts that follow on either side; each is cut short and safe to show.
    """

    token: int
    before: str
    stored: str
    prompt: str


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """Where the cached tokens came from, and why there were none, or fewer than could be expected.

    `miss_reason` is empty on a hit, but for a template that rewrote history. `difference` is from the stored
    sequence that shares most with the prompt, None where there is none or all of it was used.
    """

    memory_tokens: int = 0
    checkpoint_tokens: int = 0
    disk_tokens: int = 0
    miss_reason: str = ""
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class ContextUse:
    """What a request takes of the context, in tokens; `answer_tokens` are those of the answer so far, or as
    many as are kept free for it."""

    system_tokens: int
    history_tokens: int
    newest_tokens: int
    answer_tokens: int
    capacity_tokens: int

    @property
    def free_tokens(self) -> int:
        """What is left for later turns."""
        taken = self.system_tokens + self.history_tokens + self.newest_tokens + self.answer_tokens
        return self.capacity_tokens - taken


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A token's bytes and natural log probability before any sampler."""

    token: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A sampled token beside the likeliest ones at its place, best first."""

    chosen: Likelihood
    top: tuple[Likelihood, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer with everything that was measured: the content of `llmrun.completion/1`.

    `dropped_messages` of the conversation were left out of the prompt, the oldest, and `summary` stood for
    them (empty for nothing). `choices` has one entry for each sampled token where log probabilities were
    asked for. `context` is known where somebody watches.
    """

    model: ModelInfo
    text: str
    reasoning: str
    finish_reason: FinishReason
    stats: GenerationStats
    prefix: PrefixReport
    kv: KvUse
    dropped_messages: int
    summary: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    choices: tuple[TokenChoice, ...] | None = None
    context: ContextUse | None = None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Share of the weights read so far, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Model and context are ready. `load_s` is counted from when the process was ready."""

    model: ModelInfo
    load_s: float
    n_ctx: int
    n_threads: int
    kv: KvUse


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request was taken; TTFT counts from here."""

    t_s: float


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` tokens of this prefill are evaluated; cached ones are not counted."""

    done: int
    total: int
    elapsed_s: float
    t_s: float


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt is in the cache and the first token can be sampled."""

    prompt_tokens: int
    cached_tokens: int
    prefill_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """Final text, valid UTF-8, from `n` sampled tokens (0 for held-back text that is released)."""

    text: str
    n: int
    kind: TextKind
    t_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a request under way, sent a few times a second where somebody watches."""

    stats: GenerationStats
    prefix: PrefixReport
    kv: KvUse
    context: ContextUse | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user. `info` shows on terminals or with -v only, `warning` always."""

    level: Literal["info", "warning"]
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended; `completion` holds text and measurements."""

    completion: Completion
    t_s: float


Event = LoadProgress | Loaded | Accepted | PrefillProgress | Prefilled | Token | Measured | Notice | Finished
