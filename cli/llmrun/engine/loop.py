"""The decode loop: prompts in slices first, then one token of every running sequence a step.

Prompts are evaluated one sequence after the other, in slices of n_ubatch tokens: a prompt is then cut the
same way whether it runs alone or beside others, which keeps its numbers the same, and progress can be
shown and Ctrl-C obeyed between slices on devices that ignore the abort callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from llmrun.engine.api import (
    EndReason,
    EndStep,
    Job,
    PrefillStep,
    Step,
    TokenStep,
    check_prompts,
    slices,
)
from llmrun.engine.context import Context
from llmrun.engine.sampler import Sampler
from llmrun.engine.vocab import Vocab


@dataclass(slots=True)
class _Sequence:
    job: Job
    forced: deque[int] = field(default_factory=deque)
    sampled: int = 0
    last_token: int = 0
    ended: bool = False

    @property
    def seq(self) -> int:
        return self.job.seq

    def end(self, reason: EndReason) -> EndStep:
        self.ended = True
        return EndStep(self.seq, reason)


class DecodeLoop:
    """Runs a set of jobs on one context; implements `Run` of `engine/api.py`. Iterate it once."""

    def __init__(self, context: Context, vocab: Vocab, jobs: Sequence[Job]) -> None:
        self._context = context
        self._vocab = vocab
        self._sequences = [_Sequence(job) for job in jobs]
        self._samplers: dict[int, Sampler] = {}
        self._complete: set[int] = set()  # sequences asked to stop

    def stop(self, seq: int) -> None:
        """End a sequence whose answer is complete; what is in its cache stays for the next prompt."""
        self._complete.add(seq)

    def force(self, seq: int, tokens: Sequence[int]) -> None:
        """Let the next tokens of `seq` be these instead of sampled ones."""
        next(s for s in self._sequences if s.seq == seq).forced.extend(tokens)

    def __iter__(self) -> Iterator[Step]:
        jobs = [s.job for s in self._sequences]
        check_prompts(jobs, self._context.n_ctx_seq)
        with ExitStack() as open_samplers:
            for job in jobs:
                sampler = Sampler(job.sampling, self._vocab, job.prompt)
                self._samplers[job.seq] = open_samplers.enter_context(closing(sampler))
            for sequence in self._sequences:
                yield from self._prefill(sequence)
            while running := [s for s in self._sequences if not s.ended]:
                yield from self._decode(running)

    def _prefill(self, sequence: _Sequence) -> Iterator[Step]:
        context, seq, prompt = self._context, sequence.seq, sequence.job.prompt
        if seq in self._complete:
            yield sequence.end("stopped")
            return
        reused = context.keep_prefix(seq, prompt)
        total = len(prompt) - reused
        yield PrefillStep(seq, 0, total, reused)
        for start, end in slices(reused, len(prompt), context.n_ubatch, sequence.job.marks):
            if seq in self._complete:
                yield sequence.end("stopped")
                return
            part = prompt[start:end]
            result = context.prefill(seq, part)
            if result != "ok":
                yield sequence.end("interrupted" if result == "aborted" else "context")
                return
            context.synchronize()
            yield PrefillStep(seq, end - reused, total, reused)
        if sequence.job.max_tokens == 0:
            yield sequence.end("length")
        else:
            yield from self._sample(sequence, -1)

    def _decode(self, running: Sequence[_Sequence]) -> Iterator[Step]:
        """One step: evaluate the last token of every running sequence, then sample the next ones."""
        batch: list[_Sequence] = []
        for sequence in running:
            if sequence.seq in self._complete:
                yield sequence.end("stopped")
            elif self._context.room(sequence.seq) - len(batch) * self._context.shares_cells > 0:
                batch.append(sequence)
            else:
                yield sequence.end("context")
        if not batch:
            return
        result = self._context.decode([(s.seq, s.last_token) for s in batch])
        if result != "ok":
            for sequence in batch:
                yield sequence.end("interrupted" if result == "aborted" else "context")
            return
        for index, sequence in enumerate(batch):
            yield from self._sample(sequence, index)

    def _sample(self, sequence: _Sequence, index: int) -> Iterator[Step]:
        """Draw one token; ends the sequence at the end of the turn, at its bound, or when asked to stop."""
        sampler = self._samplers[sequence.seq]
        if sequence.forced:
            token = sequence.forced.popleft()
            sampler.accept(token)
        else:
            token = sampler.sample(self._context.handle, index)
        wanted = sequence.job.logprobs
        logprobs = None if wanted is None else self._context.logprobs(index, token, wanted)
        sequence.last_token = token
        sequence.sampled += 1
        eog = self._vocab.is_eog(token)
        yield TokenStep(sequence.seq, token, eog, logprobs)
        if eog:
            yield sequence.end("eog")
        elif sequence.seq in self._complete:
            yield sequence.end("stopped")
        elif sequence.sampled == sequence.job.max_tokens:
            yield sequence.end("length")
