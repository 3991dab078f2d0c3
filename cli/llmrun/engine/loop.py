"""The decode loop: prompts in slices first, then one token of every running sequence a step.

Prompts are evaluated one sequence after the other, in slices of n_ubatch tokens: a prompt is then cut the
same way whether it runs alone or beside others, which keeps its numbers the same, and progress can be
shown and Ctrl-C obeyed between slices on devices that ignore the abort callback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmrun.engine.api import EndReason, EndStep, Job, PrefillStep, Step, TokenStep
from llmrun.engine.context import Context
from llmrun.engine.sampler import Sampler
from llmrun.engine.vocab import Vocab
from llmrun.errors import PromptTooLong


@dataclass(slots=True)
class _Sequence:
    job: Job
    sampler: Sampler
    sampled: int = 0
    last_token: int = 0
    end: EndReason | None = None

    @property
    def seq(self) -> int:
        return self.job.seq


class DecodeLoop:
    """Runs a set of jobs on one context; implements `Run` of `engine/api.py`."""

    def __init__(self, context: Context, vocab: Vocab, jobs: Sequence[Job]) -> None:
        self._context = context
        self._vocab = vocab
        self._sequences = [_Sequence(job, Sampler(job.sampling, vocab, job.prompt)) for job in jobs]

    def stop(self, seq: int) -> None:
        """End a sequence whose answer is complete; what is in its cache stays for the next prompt."""
        for sequence in self._sequences:
            if sequence.seq == seq and sequence.end is None:
                sequence.end = "stopped"

    def __iter__(self) -> Iterator[Step]:
        try:
            for sequence in self._sequences:
                yield from self._prefill(sequence)
            running = [s for s in self._sequences if s.end is None]
            while running:
                yield from self._decode(running)
                running = [s for s in running if s.end is None]
        finally:
            for sequence in self._sequences:
                sequence.sampler.close()

    def _prefill(self, sequence: _Sequence) -> Iterator[Step]:
        context, seq, prompt = self._context, sequence.seq, sequence.job.prompt
        if len(prompt) > context.n_ctx_seq:
            raise PromptTooLong(f"the prompt has {len(prompt)} tokens, the context holds {context.n_ctx_seq}")
        reused = context.keep_prefix(seq, prompt)
        total = len(prompt) - reused
        yield PrefillStep(seq, 0, total, reused)
        for start in range(reused, len(prompt), context.n_ubatch):
            part = prompt[start : start + context.n_ubatch]
            result = context.prefill(seq, part)
            if result != "ok":
                sequence.end = "interrupted" if result == "aborted" else "context"
                yield EndStep(seq, sequence.end)
                return
            context.synchronize()
            yield PrefillStep(seq, start + len(part) - reused, total, reused)
        yield from self._sample(sequence, -1)

    def _decode(self, running: Sequence[_Sequence]) -> Iterator[Step]:
        """One step: evaluate the last token of every running sequence, then sample the next ones."""
        batch: list[_Sequence] = []
        for sequence in running:
            if self._context.room(sequence.seq) - len(batch) * self._context.shares_cells > 0:
                batch.append(sequence)
            else:
                yield self._end(sequence, "context")
        if not batch:
            return
        result = self._context.decode([(s.seq, s.last_token) for s in batch])
        if result != "ok":
            for sequence in batch:
                yield self._end(sequence, "interrupted" if result == "aborted" else "context")
            return
        for index, sequence in enumerate(batch):
            yield from self._sample(sequence, index)

    def _sample(self, sequence: _Sequence, index: int) -> Iterator[Step]:
        """Draw one token; ends the sequence at the end of the turn, at its bound, or when asked to stop."""
        token = sequence.sampler.sample(self._context.handle, index)
        sequence.last_token = token
        sequence.sampled += 1
        eog = self._vocab.is_eog(token)
        yield TokenStep(sequence.seq, token, eog)
        if eog:
            yield self._end(sequence, "eog")
        elif sequence.end is not None:
            yield EndStep(sequence.seq, sequence.end)
        elif sequence.sampled == sequence.job.max_tokens:
            yield self._end(sequence, "length")

    @staticmethod
    def _end(sequence: _Sequence, reason: EndReason) -> EndStep:
        sequence.end = reason
        return EndStep(sequence.seq, reason)
