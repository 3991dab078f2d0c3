"""The engine over llama.cpp: one model and one context behind the `Engine` protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmrun.engine.api import (
    CacheBlock,
    ContextParams,
    DecodeResult,
    EngineFacts,
    Job,
    ModelParams,
    Run,
    State,
)
from llmrun.engine.bindings import library_path
from llmrun.engine.context import Context
from llmrun.engine.identity import identity_of
from llmrun.engine.loop import DecodeLoop
from llmrun.engine.model import Model, load_model
from llmrun.errors import DoesNotFit, EngineFailure, Interrupted

ExactBlocks = Callable[[EngineFacts], tuple[CacheBlock, ...]]


class LlamaEngine:
    """Implements `Engine`; opened by `open_engine`."""

    def __init__(
        self,
        model: Model,
        context: Context,
        model_params: ModelParams,
        params: ContextParams,
        exact: ExactBlocks | None = None,
    ) -> None:
        self._exact = exact
        self._model = model
        self._context = context
        self._params = params
        self._vocab = model.vocab
        self.facts = EngineFacts(
            n_ctx=context.n_ctx,
            n_ctx_seq=context.n_ctx_seq,
            n_ctx_train=model.n_ctx_train,
            n_seq=params.n_seq,
            kv_unified=params.kv_unified,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            n_threads=params.n_threads,
            n_threads_batch=params.n_threads_batch,
            n_vocab=model.vocab.n_tokens,
            n_swa=model.n_swa,
            swa_full=params.swa_full,
            gpu_layers_requested=model_params.gpu_layers,
            gpu_layers=model.gpu_layers,
            flash_attn=context.flash_attn,
            type_k=params.type_k,
            type_v=params.type_v,
            add_bos=model.vocab.add_bos,
            bos_text=model.vocab.text_of("bos"),
            eos_text=model.vocab.text_of("eos"),
            cache_blocks=context.cache_blocks,
            extra_bufts=model.extra_bufts,
            library=library_path(),
            identity=identity_of(model.handle),
            weights_bytes=model.buffer_bytes,
            mapped=model.mapped,
            compute_bytes=context.compute_bytes,
            memory=context.kind,
            long_rope=context.long_rope,
        )
        self._refine()

    def _refine(self) -> None:
        if self._exact is not None:
            self.facts = replace(self.facts, cache_blocks=self._exact(self.facts))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """See `Engine.tokenize`."""
        return self._vocab.tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token: int) -> bytes:
        """See `Engine.piece`."""
        return self._vocab.piece(token)

    def is_control(self, token: int) -> bool:
        """See `Engine.is_control`."""
        return self._vocab.is_control(token)

    def held(self, seq: int) -> Sequence[int]:
        """See `Engine.held`."""
        return self._context.held(seq)

    def run(self, jobs: Sequence[Job]) -> Run:
        """See `Engine.run`."""
        if not self._context.is_open:  # it could not be made again when its size was to change
            self._use(self._params)
        return DecodeLoop(lambda: self._context, self._vocab, jobs)

    def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        """See `Engine.feed`."""
        return self._context.feed(pairs)

    def rewind(self, seq: int, n_tokens: int) -> int:
        """See `Engine.rewind`."""
        return self._context.rewind(seq, n_tokens)

    def pos_min(self, seq: int) -> int:
        """See `Engine.pos_min`."""
        return self._context.pos_min(seq)

    def save(self, seq: int, *, partial: bool = False) -> State:
        """See `Engine.save`."""
        return self._context.save(seq, partial=partial)

    def restore(self, seq: int, state: State, tokens: Sequence[int]) -> bool:
        """See `Engine.restore`."""
        return self._context.restore(seq, state, tokens)

    def resize(self, n_ctx: int) -> bool:
        """See `Engine.resize`. The copies wait in main memory, so that the device never holds both caches.
        A copy has of a window what the next token needs, so that afterwards less can be taken back."""
        held = {seq: list(self.held(seq)) for seq in range(self.facts.n_seq) if self.held(seq)}
        states = {seq: self.save(seq) for seq in held}
        self._context.close()
        try:
            self._use(replace(self._params, n_ctx=n_ctx))
            larger = True
        except (DoesNotFit, EngineFailure):
            self._use(self._params)
            larger = False
        for seq, state in states.items():
            self._context.restore(seq, state, held[seq])
        return larger

    def _use(self, params: ContextParams) -> None:
        """Put a new context in the place of the closed one."""
        self._context = context = Context(self._model, params, self._context.abort)
        self._params = params
        self.facts = replace(
            self.facts,
            n_ctx=context.n_ctx,
            n_ctx_seq=context.n_ctx_seq,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            cache_blocks=context.cache_blocks,
            compute_bytes=context.compute_bytes,
            long_rope=context.long_rope,
        )
        self._refine()

    def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        self._context.abort.set()

    def resume(self) -> None:
        """See `Engine.resume`."""
        self._context.abort.clear()

    def close(self) -> None:
        """Free context, then model."""
        self._context.close()
        self._model.close()


def open_engine(
    model_params: ModelParams,
    context_params: ContextParams,
    progress: Callable[[float], None],
    cancelled: threading.Event,
    *,
    exact: ExactBlocks | None = None,
) -> LlamaEngine:
    """Load a model and create its context.

    `exact` gives the caches' sizes to the byte; without it they are as the library logs them.

    Raises:
        NotAModel: the library refuses the file or the model does not generate text.
        DoesNotFit: weights or context cannot be allocated.
        EngineFailure: the library fails otherwise.
        Interrupted: `cancelled` was set while loading.
    """
    from llmrun.engine.amx import extra_bufts_are_safe

    extra_bufts = extra_bufts_are_safe(library_path())
    model = load_model(model_params, extra_bufts=extra_bufts, progress=progress, cancelled=cancelled)
    try:
        model.check_generates()
        if cancelled.is_set():
            raise Interrupted("interrupted while loading")
        context = Context(model, context_params)
    except BaseException:
        model.close()
        raise
    return LlamaEngine(model, context, model_params, context_params, exact)
