"""Whole requests on a real prompt, through the same code as `llmrun run`: what a user waits for.

Cold: the K/V cache is emptied before each repetition and nothing else keeps prefixes, so that every one
evaluates the whole prompt. Cached: the same prompt again, served from memory as in a chat; nothing is read
from disk or written there.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence

from llmrun.app.answer.decode import SEQ
from llmrun.app.answer.turn import Ask, Turns
from llmrun.app.loading import Opened
from llmrun.chat.messages import Message
from llmrun.chat.overflow import Conversation
from llmrun.errors import Interrupted
from llmrun.events import Event, Finished, GenerationStats, ItlStats, Notice
from llmrun.metrics.clock import Clock
from llmrun.reports.bench import RequestTimes


class RequestRun:
    """Repeats one prompt on one open model. `stats` grows with every repetition that counts."""

    def __init__(self, opened: Opened, clock: Clock, prompt: str, *, cold: bool) -> None:
        """`opened` keeps no prefixes beside its sequence where the requests are to be cold."""
        self._opened, self._clock, self._cold = opened, clock, cold
        self._turns = Turns(opened, clock)
        if opened.renderer is None:
            self._ask = Ask(raw=prompt, ignore_eos=True)
        else:
            system = opened.settings.output.system or ""
            self._ask = Ask(Conversation(system, (), Message("user", prompt)), ignore_eos=True)
        self.stats: list[GenerationStats] = []

    def repeat(self) -> Generator[Event, None, None]:
        """One request; yields only notices.

        Raises:
            Interrupted: the user stopped it. Else as `Turns.answer`.
        """
        if self._cold:
            self._opened.engine.rewind(SEQ, 0)
            self._turns = Turns(self._opened, self._clock)
        for event in self._turns.answer(self._ask):
            if isinstance(event, Notice):
                yield event
            elif isinstance(event, Finished):
                if event.completion.finish_reason == "interrupted":
                    raise Interrupted("interrupted")
                self.stats.append(event.completion.stats)


def request_times(stats: Sequence[GenerationStats]) -> RequestTimes:
    """The median of every figure over repetitions of one request, at least one of which gave a token.

    The parts of TTFT are those of the repetition with the median TTFT, so that they add up.
    """
    middle = sorted(stats, key=lambda s: s.ttft_s or 0.0)[(len(stats) - 1) // 2]
    evaluated = {s.prefill_tokens for s in stats}
    prefill = [rate for s in stats if (rate := s.prefill_rate) is not None]
    made = [rate for s in stats if (rate := s.generation_rate) is not None]
    return RequestTimes(
        ttft_s=middle.ttft_s or 0.0,
        queue_s=middle.queue_s,
        tokenize_s=middle.tokenize_s,
        prefill_s=middle.prefill_s,
        first_sample_s=middle.first_sample_s or 0.0,
        total_s=statistics.median(s.total_s for s in stats),
        itl=_itl([s.itl for s in stats if s.itl is not None]),
        load_s=stats[0].load_s,
        evaluated=evaluated.pop() if len(evaluated) == 1 else -1,
        cached=stats[-1].cached_tokens,
        prefill_rate=statistics.median(prefill) if prefill else None,
        generation_rate=statistics.median(made) if made else None,
    )


def _itl(found: Sequence[ItlStats]) -> ItlStats | None:
    if not found:
        return None
    names = ("mean_s", "p50_s", "p90_s", "p99_s", "max_s")
    return ItlStats(*(statistics.median(getattr(one, name) for one in found) for name in names))
