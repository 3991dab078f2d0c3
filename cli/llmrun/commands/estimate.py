"""`llmrun estimate`: how long a request will take, and what would change that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Optional, get_args

import typer

from llmrun.commands.shared_options import Profile
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.app.estimate.rates import From
    from llmrun.app.estimate.run import EstimateRequest
    from llmrun.events import Event
    from llmrun.reports.estimate import EstimateReport

MAX_TOKENS, MAX_REQUESTS = 1_000_000_000, 10_000
LEAST_RATE, MAX_RATE = 1e-6, 1e12
_RATES, _LEVERS = "Rates", "What to compare with"

Count = Optional[int]  # noqa: UP045
Rate = Optional[float]  # noqa: UP045
Word = Optional[str]  # noqa: UP045

Model = Annotated[
    Word,
    typer.Argument(metavar="MODEL", help="path to a .gguf file, user/repo:QUANT, or a catalogue name"),
]
PromptTokens = Annotated[
    Count,
    typer.Option(
        "-p", "--prompt-tokens", metavar="N", min=0, max=MAX_TOKENS, help="tokens of the prompt (512)"
    ),
]
OutputTokens = Annotated[
    Count,
    typer.Option(
        "-n", "--output-tokens", metavar="N", min=0, max=MAX_TOKENS, help="tokens to generate (128)"
    ),
]
CachedTokens = Annotated[
    int, typer.Option("--cached-tokens", metavar="N", min=0, help="tokens of the prompt held in a cache")
]
Texts = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--text",
        metavar="TEXT|@FILE",
        help="count a text with the model's tokenizer; without -p a single one is the prompt",
    ),
]
PrefillRate = Annotated[
    Rate, typer.Option("--prefill-rate", metavar="N", help="prompt tokens a second", rich_help_panel=_RATES)
]
DecodeRate = Annotated[
    Rate, typer.Option("--decode-rate", metavar="N", help="output tokens a second", rich_help_panel=_RATES)
]
Source = Annotated[
    Word,
    typer.Option(
        "--from",
        metavar="bench|log|measure",
        help="rates from benchmarks, from the request log, or measured now; default: the first there are",
        rich_help_panel=_RATES,
    ),
]
Weights = Annotated[
    Word,
    typer.Option(
        "--weights", metavar="SIZE", help="bytes that a token reads, such as 8GB", rich_help_panel=_RATES
    ),
]
Bandwidth = Annotated[
    Word,
    typer.Option(
        "--bandwidth",
        metavar="SIZE/s",
        help="what the memory gives, such as 400GB/s; bounds decode",
        rich_help_panel=_RATES,
    ),
]
RetrievedTokens = Annotated[
    Count,
    typer.Option(
        "--retrieved-tokens",
        metavar="N",
        min=0,
        help="part of the prompt that was looked up (all of it)",
        rich_help_panel=_LEVERS,
    ),
]
Quant = Annotated[
    Word,
    typer.Option("--quant", metavar="NAME", help="another quantization of MODEL", rich_help_panel=_LEVERS),
]
Parallel = Annotated[
    int,
    typer.Option(
        "-np",
        "--parallel",
        metavar="N",
        min=1,
        max=MAX_REQUESTS,
        help="requests at once",
        rich_help_panel=_LEVERS,
    ),
]


def estimate(
    *,
    model: Model = None,
    prompt_tokens: PromptTokens = None,
    output_tokens: OutputTokens = None,
    cached_tokens: CachedTokens = 0,
    text: Texts = None,
    prefill_rate: PrefillRate = None,
    decode_rate: DecodeRate = None,
    source: Source = None,
    weights: Weights = None,
    bandwidth: Bandwidth = None,
    retrieved_tokens: RetrievedTokens = None,
    quant: Quant = None,
    parallel: Parallel = 4,
    profile: Profile = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """Estimate how long a request takes: prompt / prefill rate + output / decode rate.

    Rates are given, or those of MODEL on this machine: from benchmarks, the
    request log, or a measurement of a few seconds. Shows which phase takes the
    time, and what a prefix cache, a shorter prompt, a smaller quantization and
    a batch would change.
    """
    from llmrun.app.estimate.run import EstimateRequest
    from llmrun.app.settings import SettingSources
    from llmrun.documents.requests import dump
    from llmrun.documents.tools import estimate_document
    from llmrun.ui.estimate_view import print_estimate
    from llmrun.ui.streams import Streams

    request = EstimateRequest(
        SettingSources(profile=profile, env=os.environ),
        model,
        prompt_tokens,
        output_tokens,
        cached_tokens,
        retrieved_tokens,
        _positive(prefill_rate, "--prefill-rate"),
        _positive(decode_rate, "--decode-rate"),
        _size(weights, "--weights"),
        _size(bandwidth.removesuffix("/s") if bandwidth else None, "--bandwidth"),
        quant,
        parallel,
        tuple(map(_sample, text or ())),
        _from(source),
    )
    report = _run(request)
    streams = Streams.of_process()
    if json:
        streams.write_text(dump(estimate_document(report)))
    else:
        print_estimate(streams, report)


def _run(request: EstimateRequest) -> EstimateReport:
    """The report, worked out beside this thread, so that Ctrl-C stops a measurement at once."""
    from llmrun.app.estimate.run import estimate
    from llmrun.app.worker import SigintStops, Stop
    from llmrun.commands.views import show_events
    from llmrun.metrics.clock import process_clock
    from llmrun.ui.estimate_view import EstimateProgress
    from llmrun.ui.streams import Streams

    found: list[EstimateReport] = []
    stop = Stop()

    def events() -> Iterator[Event]:
        found.append((yield from estimate(request, process_clock(), stop)))

    with SigintStops(stop):
        show_events(events(), stop, EstimateProgress(Streams.of_process()))
    return found[0]


def _sample(given: str) -> tuple[str, str]:
    """Name and text of a sample."""
    from llmrun.app.prompt_input import text_or_file

    name, text = given.removeprefix("@"), text_or_file(given)
    if not text:
        raise UsageError(f"--text {name!r} holds nothing to count", "give it a text, or @FILE")
    return name, text


def _positive(rate: float | None, flag: str) -> float | None:
    if rate is not None and not LEAST_RATE <= rate <= MAX_RATE:
        allowed = f"give tokens a second, a number from {LEAST_RATE:g} to {MAX_RATE:g}"
        raise UsageError(f"{flag} is {rate:g}", allowed)
    return rate


def _size(text: str | None, flag: str) -> int | None:
    from llmrun.app.memory.size_text import parse_size

    size = None if text is None else parse_size(text, what=flag)
    if size == 0:
        raise UsageError(f"{flag} is 0", "write it like 8GB")
    return size


def _from(source: str | None) -> From | None:
    from llmrun.app.estimate.rates import From

    for known in get_args(From):
        if source == known:
            return known  # type: ignore[no-any-return]
    if source is not None:
        raise UsageError(f"--from cannot be {source!r}", f"allowed: {', '.join(get_args(From))}")
    return None
