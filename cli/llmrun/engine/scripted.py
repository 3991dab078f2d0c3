"""An engine without a library: it answers from a script and keeps the same books as the real one.

Tokens are the bytes of the text, the given special tokens, and one token for each piece of a reply. Time
passes only through `tick`, which a test couples to its clock, so whole requests can be replayed exactly.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmrun.engine.api import (
    CacheBlock,
    ContextParams,
    DecodeResult,
    EndReason,
    EndStep,
    EngineFacts,
    Identity,
    Job,
    ModelParams,
    PrefillStep,
    Run,
    State,
    Step,
    TokenLogprobs,
    TokenStep,
    check_prompts,
    slices,
)
from llmrun.prefix.reuse import MemoryKind, usable_prefix

_BYTES = 256
_KV_BYTES_PER_TOKEN = 1024


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine knows and says: one reply (pieces of text) a run, the last one again when they run out.

    `specials` are control tokens by their text; the first is what ends a turn. `memory` is what the model
    forgets.
    """

    replies: Sequence[Sequence[str | bytes]]
    specials: tuple[str, ...] = ("<|end|>",)
    n_ctx_train: int = 8192
    memory: MemoryKind = field(default_factory=MemoryKind)


class ScriptedEngine:
    """Implements `Engine`. `prompts` records the token ids of every prompt it was given."""

    def __init__(
        self, script: Script, params: ContextParams, tick: Callable[[str], None] = lambda _event: None
    ) -> None:
        self._script = script
        self._tick = tick
        self._n_ubatch = params.n_ubatch
        self._stopped = threading.Event()
        self._held: list[list[int]] = [[] for _ in range(params.n_seq)]
        self._first = [0] * params.n_seq
        self._pieces = [bytes([value]) for value in range(_BYTES)]
        self._specials = {text: self._add(text.encode()) for text in script.specials}
        self._eog = self._specials[script.specials[0]]
        self._runs = 0
        self.prompts: list[list[int]] = []
        n_ctx = params.n_ctx or script.n_ctx_train
        self.facts = EngineFacts(
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx if params.kv_unified else n_ctx // params.n_seq,
            n_ctx_train=script.n_ctx_train,
            n_seq=params.n_seq,
            kv_unified=params.kv_unified,
            n_batch=params.n_batch,
            n_ubatch=params.n_ubatch,
            n_threads=params.n_threads,
            n_threads_batch=params.n_threads_batch,
            n_vocab=len(self._pieces),
            n_swa=script.memory.n_swa,
            swa_full=params.swa_full,
            gpu_layers_requested=0,
            gpu_layers=0,
            flash_attn="off",
            type_k=params.type_k,
            type_v=params.type_v,
            add_bos=False,
            bos_text="",
            eos_text=script.specials[0],
            cache_blocks=(CacheBlock("full", "CPU", n_ctx * _KV_BYTES_PER_TOKEN, n_ctx),),
            extra_bufts=False,
            library="scripted",
            memory=script.memory,
            identity=Identity("scripted", "CPU", "scripted CPU", "", "scripted 1M F32", 4_000_000, 1_000_000),
        )

    def _add(self, piece: bytes) -> int:
        self._pieces.append(piece)
        return len(self._pieces) - 1

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Bytes of `text`; the texts of special tokens become those tokens if asked."""
        if parse_special:
            for special, token in self._specials.items():
                before, found, after = text.partition(special)
                if found:
                    head = self.tokenize(before, add_special=False, parse_special=True)
                    return [*head, token, *self.tokenize(after, add_special=False, parse_special=True)]
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        """See `Engine.piece`."""
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        """See `Engine.is_control`."""
        return token in self._specials.values()

    def held(self, seq: int) -> Sequence[int]:
        """See `Engine.held`."""
        return self._held[seq]

    def run(self, jobs: Sequence[Job]) -> Run:
        """Answer each job with the next reply of the script."""
        runs = []
        for job in jobs:
            reply = self._script.replies[min(self._runs, len(self._script.replies) - 1)]
            self._runs += 1
            tokens = [self._add(p.encode() if isinstance(p, str) else p) for p in reply]
            runs.append((job, [*tokens, self._eog]))
        return _ScriptedRun(self, runs)

    def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        """See `Engine.feed`; a batch of one token ticks as a token, a larger one as prefill."""
        for start in range(0, len(pairs), self.facts.n_batch):
            part = pairs[start : start + self.facts.n_batch]
            if self._stopped.is_set():
                return "aborted"
            added = Counter(seq for seq, _ in part)
            if any(len(self._held[seq]) + n > self.facts.n_ctx_seq for seq, n in added.items()):
                return "full"
            self._tick("token" if len(part) == len(added) else "prefill")
            for seq, token in part:
                self._held[seq].append(token)
        return "ok"

    def rewind(self, seq: int, n_tokens: int) -> int:
        """See `Engine.rewind`."""
        if n_tokens < len(self._held[seq]):
            self._reuse(seq, self._held[seq][: n_tokens + 1])
        return len(self._held[seq])

    def pos_min(self, seq: int) -> int:
        """See `Engine.pos_min`; positions once lost stay lost."""
        memory, length = self.facts.memory, len(self._held[seq])
        reach = 1 if memory.recurrent else memory.n_swa or length
        self._first[seq] = max(self._first[seq], length - reach) if length else 0
        return self._first[seq]

    def save(self, seq: int, *, partial: bool = False) -> State:
        """See `Engine.save`; the copy tells the tokens."""
        return State(bytearray(array("i", self._held[seq]).tobytes()), self.pos_min(seq), partial)

    def restore(self, seq: int, state: State, tokens: Sequence[int]) -> bool:
        """See `Engine.restore`."""
        held, count = self._held[seq], len(tokens)
        if not 0 < count <= self.facts.n_ctx_seq or (state.partial and held[:count] != list(tokens)):
            return False
        if bytes(state.data) != array("i", tokens).tobytes():
            held.clear()
            return False
        held[:] = tokens
        self._first[seq] = state.pos_min
        return True

    def _reuse(self, seq: int, prompt: Sequence[int]) -> int:
        """Keep what a prompt can use of what `seq` holds; returns how many tokens that is."""
        held = self._held[seq]
        keep = usable_prefix(held, prompt, pos_min=self.pos_min(seq), kind=self.facts.memory)
        del held[keep:]
        return keep

    def resize(self, n_ctx: int) -> bool:
        """See `Engine.resize`; up to the trained length there is room."""
        if n_ctx > self.facts.n_ctx_train:
            return False
        share = n_ctx if self.facts.kv_unified else n_ctx // self.facts.n_seq
        blocks = (CacheBlock("full", "CPU", n_ctx * _KV_BYTES_PER_TOKEN, n_ctx),)
        self.facts = replace(self.facts, n_ctx=n_ctx, n_ctx_seq=share, cache_blocks=blocks)
        return True

    def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        self._stopped.set()

    def resume(self) -> None:
        """See `Engine.resume`."""
        self._stopped.clear()

    def close(self) -> None:
        """Nothing to free."""


class _ScriptedRun:
    def __init__(self, engine: ScriptedEngine, runs: Sequence[tuple[Job, Sequence[int]]]) -> None:
        self._engine = engine
        self._runs = runs
        self._complete: set[int] = set()
        self._going_on: set[int] = set()
        self._forced: dict[int, deque[int]] = {job.seq: deque() for job, _ in runs}

    def stop(self, seq: int) -> None:
        self._complete.add(seq)

    def force(self, seq: int, tokens: Sequence[int]) -> None:
        self._forced[seq].extend(tokens)

    def go_on(self, seq: int) -> None:
        self._going_on.add(seq)

    def __iter__(self) -> Iterator[Step]:
        check_prompts([job for job, _ in self._runs], self._engine.facts.n_ctx_seq)
        for job, reply in self._runs:
            yield from self._answer(job, reply)

    def _answer(self, job: Job, reply: Sequence[int]) -> Iterator[Step]:
        engine, seq = self._engine, job.seq
        held = engine._held[seq]
        if seq in self._complete:
            yield EndStep(seq, "stopped")
            return
        engine.prompts.append(list(job.prompt))
        reused = engine._reuse(seq, job.prompt)
        total = len(job.prompt) - reused
        yield PrefillStep(seq, 0, total, reused)
        for start, end in slices(reused, len(job.prompt), engine._n_ubatch, job.marks):
            if seq in self._complete or engine._stopped.is_set():
                yield EndStep(seq, "stopped" if seq in self._complete else "interrupted")
                return
            engine._tick("prefill")
            held += job.prompt[start:end]
            yield PrefillStep(seq, len(held) - reused, total, reused)
        if job.max_tokens == 0:
            yield EndStep(seq, "length")
        else:
            yield from self._recite(job, reply, held)

    def _recite(self, job: Job, reply: Sequence[int], held: list[int]) -> Iterator[Step]:
        engine, seq = self._engine, job.seq
        script, forced = iter(reply), self._forced[seq]
        for count in itertools.count(1):
            engine._tick("token")
            token = forced.popleft() if forced else next(script)
            eog = token == engine._eog
            certain = None if job.logprobs is None else TokenLogprobs(0.0, ((token, 0.0),)[: job.logprobs])
            yield TokenStep(seq, token, eog, certain)
            reason = self._end_reason(job, count, eog=eog, full=len(held) >= engine.facts.n_ctx_seq)
            if reason is not None:
                yield EndStep(seq, reason)
                if seq not in self._going_on:
                    return
                self._going_on.remove(seq)
            held.append(token)

    def _end_reason(self, job: Job, count: int, *, eog: bool, full: bool) -> EndReason | None:
        if eog:
            return "eog"
        if job.seq in self._complete:
            return "stopped"
        if count == job.max_tokens:
            return "length"
        if self._engine._stopped.is_set():
            return "interrupted"
        return "context" if full else None


def scripted_factory(
    script: Script, tick: Callable[[str], None] = lambda _event: None
) -> Callable[[ModelParams, ContextParams, Callable[[float], None], threading.Event], ScriptedEngine]:
    """An `EngineFactory` that ignores the model file and opens a `ScriptedEngine`."""

    def open_scripted(
        _model: ModelParams, params: ContextParams, progress: Callable[[float], None], _: threading.Event
    ) -> ScriptedEngine:
        progress(1.0)
        return ScriptedEngine(script, params, tick)

    return open_scripted
