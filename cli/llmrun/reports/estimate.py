"""What `llmrun estimate` works out, as values: made by `bench` and `app`, shown by `ui`.

Times are seconds, rates tokens a second, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from llmrun.events import ModelInfo

RateSource = Literal["given", "bench", "log", "measured", "bandwidth"]
LeverKind = Literal["prefix_cache", "half_retrieved", "quantization", "batch"]


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """How long the two phases of a request take. Queue, template and tokenising are not in it."""

    prefill_s: float
    decode_s: float

    @property
    def ttft_s(self) -> float:
        """Until the first token: it is drawn from the last logits of the prefill."""
        return self.prefill_s

    @property
    def total_s(self) -> float:
        """Both phases."""
        return self.prefill_s + self.decode_s

    @property
    def prefill_share(self) -> float:
        """Share of the total; 0 where nothing takes any time."""
        return self.prefill_s / self.total_s if self.total_s else 0.0

    @property
    def decode_share(self) -> float:
        """Share of the total; 0 where nothing takes any time."""
        return self.decode_s / self.total_s if self.total_s else 0.0


@dataclass(frozen=True, slots=True)
class RateUsed:
    """The rate of one phase: its mean over this request, and the (depth, rate) points it comes from.

    `rate` is None where the phase has no tokens. `beyond`: the request goes deeper than any point, so that
    the rate there is drawn on from the points before.
    """

    source: RateSource
    rate: float | None
    points: tuple[tuple[float, float], ...]
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that decode can do: a token reads `bytes_per_token`, memory gives so many bytes a second.

    `source` of the bandwidth: "given" or "measured"; `busy`: measured beside other programs, so too low.
    """

    bytes_per_token: float
    bandwidth_bytes_per_s: float
    source: Literal["given", "measured"]
    busy: bool = False

    @property
    def rate(self) -> float:
        """Tokens a second, at most."""
        return self.bandwidth_bytes_per_s / self.bytes_per_token


@dataclass(frozen=True, slots=True)
class Lever:
    """The same request with one thing changed.

    `value`: tokens cached, tokens left out, name of a quantization (empty: half the bytes), or requests at
    once. `before_s` is what `requests` of them take without the change, one after the other. `bound`: it is
    that fast at most.
    """

    kind: LeverKind
    value: str
    times: PhaseTimes
    before_s: float
    requests: int = 1
    bound: bool = False

    @property
    def gain(self) -> float:
        """How many times as fast; 1 is no change."""
        return self.before_s / self.times.total_s if self.times.total_s else 1.0


@dataclass(frozen=True, slots=True)
class TextSample:
    """A text by the model's tokenizer. `script` is its commonest writing system, empty without letters.

    `characters_per_s`: how fast text like this appears; None without a decode rate.
    """

    name: str
    script: str
    characters: int
    size_bytes: int
    tokens: int
    characters_per_s: float | None = None

    def at(self, decode_rate: float | None) -> TextSample:
        """The same text appearing at so many tokens a second."""
        rate = None if decode_rate is None else decode_rate * self.characters_per_token
        return replace(self, characters_per_s=rate)

    @property
    def characters_per_token(self) -> float:
        """On the mean; 0 for an empty text."""
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Of UTF-8, on the mean; 0 for an empty text."""
        return self.size_bytes / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class EstimateReport:
    """The time of a request. `model` is None where only numbers were given; `note` is about the rates."""

    model: ModelInfo | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    times: PhaseTimes
    prefill: RateUsed
    decode: RateUsed
    ceiling: Ceiling | None
    levers: tuple[Lever, ...]
    texts: tuple[TextSample, ...]
    note: str = ""
