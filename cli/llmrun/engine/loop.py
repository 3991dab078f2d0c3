"""The decode loop: prompts in slices first, then one token of every running sequence a step.

Prompts are evaluated one sequence after the other, in slices of n_ubatch tokens: a prompt is then cut the
same way whether it runs alone or beside others, which keeps its numbers the same, and progress can be
shown and Ctrl-C obeyed between slices on devices that ignore the abort callback. Several GPUs that hold all
layers take a few slices at a time, as a pipeline: progress is then that much ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
    """`behind`: not all of its prompt and its sampled tokens but the last is known to be evaluated."""

    job: Job
    forced: deque[int] = field(default_factory=deque)
    sampled: list[int] = field(default_factory=list)
    behind: bool = True
    ended: bool = False

    @property
    def seq(self) -> int:
        return self.job.seq

    def end(self, reason: EndReason) -> EndStep:
        self.ended = True
        return EndStep(self.seq, reason)


class DecodeLoop:
    """Runs a set of jobs; implements `Run` of `engine/api.py`. Iterate it once."""

    def __init__(self, context: Callable[[], Context], vocab: Vocab, jobs: Sequence[Job]) -> None:
        """`context` gives the one to use, which another may replace where a sequence has ended."""
        self._context_now = context
        self._vocab = vocab
        self._sequences = [_Sequence(job) for job in jobs]
        self._samplers: dict[int, Sampler] = {}
        self._complete: set[int] = set()  # sequences asked to stop

    @property
    def _context(self) -> Context:
        return self._context_now()

    def stop(self, seq: int) -> None:
        """End a sequence whose answer is complete; what is in its cache stays for the next prompt."""
        self._complete.add(seq)

    def force(self, seq: int, tokens: Sequence[int]) -> None:
        """Let the next tokens of `seq` be these instead of sampled ones."""
        self._of(seq).forced.extend(tokens)

    def go_on(self, seq: int) -> None:
        """Take back the end of a sequence for want of cells, now that there are more; what the others held
        was moved, too."""
        self._of(seq).ended = False
        for sequence in self._sequences:
            sequence.behind = True

    def _of(self, seq: int) -> _Sequence:
        return next(s for s in self._sequences if s.seq == seq)

    def __iter__(self) -> Iterator[Step]:
        jobs = [s.job for s in self._sequences]
        check_prompts(jobs, self._context.n_ctx_seq)
        with ExitStack() as open_samplers:
            for job in jobs:
                sampler = Sampler(job.sampling, self._vocab, job.prompt)
                self._samplers[job.seq] = open_samplers.enter_context(closing(sampler))
            while running := [s for s in self._sequences if not s.ended]:
                behind = next((s for s in running if s.behind), None)
                yield from self._decode(running) if behind is None else self._prefill(behind)

    def _prefill(self, sequence: _Sequence) -> Iterator[Step]:
        """Evaluate what the sequence does not hold yet, then sample what follows."""
        context, seq, prompt = self._context, sequence.seq, [*sequence.job.prompt, *sequence.sampled]
        sequence.behind = False
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
            if end == len(prompt) or not context.pipelined:  # a pipeline of GPUs takes a few slices at a time
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
        if not batch or any(s.behind for s in running):
            return
        result = self._context.decode([(s.seq, s.sampled[-1]) for s in batch])
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
        sequence.sampled.append(token)
        eog = self._vocab.is_eog(token)
        yield TokenStep(sequence.seq, token, eog, logprobs)
        if eog:
            yield sequence.end("eog")
        elif sequence.seq in self._complete:
            yield sequence.end("stopped")
        elif len(sequence.sampled) == sequence.job.max_tokens:
            yield sequence.end("length")
