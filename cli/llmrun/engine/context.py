"""A context: the K/V cache of one model with several sequences, and one decode call at a time.

Every way the library is known to abort the process (more tokens than n_batch, more outputs than
n_outputs_max, positions past the window) is checked here before the call.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llmrun.engine.api import ContextParams, DecodeResult, State, TokenLogprobs
from llmrun.engine.bindings import library, native_log
from llmrun.engine.cache_log import read_buffers, read_cache_blocks, read_flash_attention, read_pipelined
from llmrun.engine.interrupt import AbortFlag
from llmrun.engine.kv_types import ggml_type
from llmrun.engine.likelihood import token_logprobs
from llmrun.engine.model import Model, engine_error, out_of_memory
from llmrun.engine.offload import devices_of_buffers
from llmrun.engine.states import read_state, write_state
from llmrun.engine.threadpool import ThreadPools
from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError
from llmrun.prefix.reuse import MemoryKind, saved_pos_min, usable_prefix

_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_ROPE_SCALING = {None: -1, "none": 0, "linear": 1, "yarn": 2}
_DECODE_NO_SLOT, _DECODE_ABORTED, _DECODE_NO_MEMORY = 1, 2, -2


class Context:
    """Owns one `llama_context` of a model that outlives it. One thread at a time, except `abort`."""

    def __init__(self, model: Model, params: ContextParams, abort: AbortFlag | None = None) -> None:
        """Create the context; `abort` is the flag of one whose place it takes.

        Raises:
            DoesNotFit: the library could not allocate it.
            EngineFailure: it refused the parameters; the message carries its last error line.
        """
        lib = library()
        self._lib = lib
        self.abort = abort or AbortFlag(lib.ggml_abort_callback)
        native_log.clear()
        native = self._native_params(params)
        native.op_offload = model.gpu_layers > 0  # a GPU without layers is left alone
        self.handle: Any = lib.llama_init_from_model(model.handle, native)
        if not self.handle:
            raise _not_created(params.n_ctx)
        owners = devices_of_buffers()
        self.cache_blocks = read_cache_blocks(native_log.lines, owners)
        self.compute_bytes = _scratch_bytes(owners)
        self.flash_attn = read_flash_attention(native_log.lines, params.flash_attn)
        self.pipelined = read_pipelined(native_log.lines)
        self.n_ctx: int = lib.llama_n_ctx(self.handle)
        self.n_ctx_seq: int = lib.llama_n_ctx_seq(self.handle)
        self.n_batch: int = lib.llama_n_batch(self.handle)
        self.n_ubatch: int = lib.llama_n_ubatch(self.handle)
        beyond = model.long_rope_beyond
        self.long_rope = beyond is not None and self.n_ctx_seq > beyond
        self.n_seq = params.n_seq
        self._n_vocab = model.vocab.n_tokens
        self.shares_cells = params.kv_unified  # all sequences draw on the same n_ctx cells
        self._memory = lib.llama_get_memory(self.handle)
        self.kind = MemoryKind(
            n_swa=model.n_swa,  # also with swa_full: in shared cells the library overwrites passed windows
            chunked=model.chunked_window,
            recurrent=model.recurrent,
        )
        self._held: list[list[int]] = [[] for _ in range(params.n_seq)]
        self._init_batch()
        self._threads = ThreadPools(params.n_threads, params.n_threads_batch)
        try:
            self._threads.attach(self.handle)
        except EngineFailure:
            self.close()
            raise

    def _init_batch(self) -> None:
        """One batch for the context's life, its arrays seen as ctypes arrays so that slices copy in C."""
        batch = self._batch = self._lib.llama_batch_init(self.n_batch, 0, 1)
        size = self.n_batch
        self._tokens: Any = ctypes.cast(batch.token, ctypes.POINTER(ctypes.c_int32 * size)).contents
        self._positions: Any = ctypes.cast(batch.pos, ctypes.POINTER(ctypes.c_int32 * size)).contents
        self._outputs: Any = ctypes.cast(batch.logits, ctypes.POINTER(ctypes.c_int8 * size)).contents
        for index in range(size):
            batch.n_seq_id[index] = 1

    def _native_params(self, params: ContextParams) -> Any:
        native = self._lib.llama_context_default_params()
        native.n_ctx, native.n_ubatch = params.n_ctx, params.n_ubatch
        native.n_batch = max(params.n_batch, params.n_seq)  # a decode step takes a token of every sequence
        native.n_seq_max = native.n_outputs_max = params.n_seq
        native.kv_unified, native.swa_full = params.kv_unified, params.swa_full
        native.n_threads, native.n_threads_batch = params.n_threads, params.n_threads_batch
        native.flash_attn_type = _FLASH_ATTENTION[params.flash_attn]
        native.type_k, native.type_v = ggml_type(params.type_k), ggml_type(params.type_v)
        native.offload_kqv = params.offload_kqv
        rope = params.rope
        native.rope_scaling_type = _ROPE_SCALING[rope.scaling]
        native.rope_freq_base = rope.freq_base or 0.0
        native.rope_freq_scale = rope.freq_scale or 0.0
        native.yarn_orig_ctx = rope.yarn_orig_ctx or 0
        native.abort_callback, native.abort_callback_data = self.abort.callback, self.abort.data
        return native

    @property
    def is_open(self) -> bool:
        """False once it is closed; a closed context holds nothing and takes nothing back."""
        return bool(self.handle)

    def held(self, seq: int) -> Sequence[int]:
        """Tokens whose K/V the sequence holds."""
        return self._held[seq]

    def room(self, seq: int) -> int:
        """Positions that can still be added to the sequence."""
        if self.shares_cells:
            return self.n_ctx - sum(map(len, self._held))
        return self.n_ctx_seq - len(self._held[seq])

    def keep_prefix(self, seq: int, prompt: Sequence[int]) -> int:
        """Rewind the sequence to the longest prefix of `prompt` whose K/V is valid; returns its length."""
        held = self._held[seq]
        keep = usable_prefix(held, prompt, pos_min=self.pos_min(seq), kind=self.kind)
        if keep == 0 or (keep < len(held) and not self._cut(seq, keep)):
            self._clear(seq)
        del held[keep:]
        return len(held)

    def _cut(self, seq: int, length: int) -> bool:
        """Take the positions from `length` on out of the cache; False if its memory refuses."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, seq, length, -1))

    def _clear(self, seq: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._held[seq].clear()

    def pos_min(self, seq: int) -> int:
        """First position the sequence still has in all its layers, 0 when it is empty."""
        return max(0, int(self._lib.llama_memory_seq_pos_min(self._memory, seq))) if self.is_open else 0

    def save(self, seq: int, *, partial: bool) -> State:
        """Copy a sequence's memory, or only the part of it that forgets.

        Raises:
            EngineFailure: the library does not write as much as it announced, or the context is closed.
        """
        if not self.is_open:
            raise EngineFailure("the context is closed")
        self.synchronize()
        pos_min = saved_pos_min(len(self._held[seq]), self.pos_min(seq), self.kind)
        return State(read_state(self.handle, seq, partial=partial), pos_min, partial, self.long_rope)

    def restore(self, seq: int, state: State, tokens: Sequence[int]) -> bool:
        """Put a copy back; what else the sequence held is gone, also where the library refuses the copy."""
        held, count = self._held[seq], len(tokens)
        if not self.is_open or not 0 < count <= self.room(seq) + len(held):
            return False
        if state.long_rope not in (None, self.long_rope):
            return False
        if state.partial and held[:count] != list(tokens):
            return False
        if not state.partial:
            self._clear(seq)
        fits = write_state(self.handle, seq, state.data, partial=state.partial)
        if not fits or (state.partial and not self._cut(seq, count)) or self._end(seq) != count:
            self._clear(seq)
            return False
        held[:] = tokens
        return True

    def _end(self, seq: int) -> int:
        """Positions of the sequence by the library's books."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def prefill(self, seq: int, tokens: Sequence[int]) -> DecodeResult:
        """Evaluate the next tokens of one sequence, at most `n_batch`; the last one gets logits.

        Returns "full" when the cache has no room (nothing changed) and "aborted" when `abort` was set.

        Raises:
            DoesNotFit: a device has no memory left for the computation.
            EngineFailure: the library failed, or more tokens were given than a batch takes.
        """
        count = self._check_count(len(tokens))
        start = len(self._held[seq])
        self._tokens[:count] = list(tokens)
        self._positions[:count] = list(range(start, start + count))
        self._outputs[:count] = [0] * (count - 1) + [1]
        for index in range(count):
            self._batch.seq_id[index][0] = seq
        return self._launch([(seq, token) for token in tokens])

    def decode(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        """Evaluate one (sequence, token) pair of each sequence given; result and errors as in `prefill`."""
        count = self._check_count(len(pairs))
        self._outputs[:count] = [1] * count
        for index, (seq, token) in enumerate(pairs):
            self._tokens[index] = token
            self._positions[index] = len(self._held[seq])
            self._batch.seq_id[index][0] = seq
        return self._launch(pairs)

    def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        """Evaluate (sequence, token) pairs in order, `n_batch` at a time, and wait for the device.

        The last token of a sequence in each batch gets logits. Result and errors as in `prefill`.
        """
        for start in range(0, len(pairs), self.n_batch):
            part = pairs[start : start + self.n_batch]
            ends = {seq: index for index, (seq, _) in enumerate(part)}
            position = {seq: len(self._held[seq]) for seq in ends}
            seq_ids = self._batch.seq_id
            for index, (seq, token) in enumerate(part):
                self._tokens[index] = token
                self._positions[index] = position[seq]
                self._outputs[index] = ends[seq] == index
                seq_ids[index][0] = seq
                position[seq] += 1
            result = self._launch(part)
            if result != "ok":
                return result
        self.synchronize()
        return "ok"

    def rewind(self, seq: int, n_tokens: int) -> int:
        """Keep the first `n_tokens` of a sequence, fewer where it cannot go back so far; returns how many."""
        held = self._held[seq]
        return len(held) if n_tokens >= len(held) else self.keep_prefix(seq, held[: n_tokens + 1])

    def _check_count(self, count: int) -> int:
        if not 0 < count <= self.n_batch:
            raise EngineFailure(f"a batch of {count} tokens; the context takes 1 to {self.n_batch}")
        return count

    def _launch(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        if self.abort.is_set():
            return "aborted"
        self._batch.n_tokens = len(pairs)
        code = self._lib.llama_decode(self.handle, self._batch)
        if code == _DECODE_NO_SLOT:
            return "full"
        for seq, token in pairs:
            self._held[seq].append(token)
        if code == 0:
            return "ok"
        self._resync({seq for seq, _ in pairs})
        if code == _DECODE_ABORTED:
            return "aborted"
        if code == _DECODE_NO_MEMORY:
            raise DoesNotFit(
                f"memory ran out in the engine: {native_log.last_error}",
                "use a smaller -c, or fewer layers on the GPU (-ngl)",
            )
        raise engine_error(f"decoding failed (code {code})")

    def _resync(self, seqs: set[int]) -> None:
        """After a failed decode finished ubatches stay in the cache: believe the library's positions.

        A recurrent state may be half updated and cannot be taken back, so its sequence is emptied.
        """
        for seq in seqs:
            if self.kind.recurrent:
                self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
            del self._held[seq][self._end(seq) :]

    def logprobs(self, index: int, token: int, n_top: int) -> TokenLogprobs:
        """By the logits at batch position `index` (-1: the last): of `token` and of the likeliest."""
        import numpy as np

        pointer = self._lib.llama_get_logits_ith(self.handle, index)
        return token_logprobs(np.ctypeslib.as_array(pointer, shape=(self._n_vocab,)), token, n_top)

    def synchronize(self) -> None:
        """Wait until the device has finished what was submitted."""
        self._lib.llama_synchronize(self.handle)

    def close(self) -> None:
        """Free the context; closing twice does nothing."""
        if self.handle:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self.handle)
            self.handle = None
            self._held = [[] for _ in self._held]
            self._threads.close()


def _scratch_bytes(devices: Mapping[str, str]) -> dict[str, int]:
    """Compute and output buffers by device, from the log of creating the context."""
    found = Counter(read_buffers(native_log.lines, "compute", devices))
    found.update(read_buffers(native_log.lines, "output", devices))
    return dict(found)


def _not_created(n_ctx: int) -> LlmrunError:
    if out_of_memory():
        return DoesNotFit(
            f"a context of {n_ctx:,} tokens does not fit: {native_log.last_error}",
            "use a smaller -c, or a smaller --kv-type with -fa on",
        )
    return engine_error("the engine cannot create the context", _refusal())


def _refusal() -> str:
    """The last warning-like line of the log: some refusals are not logged as errors."""
    return next((line for line in reversed(native_log.lines) if "requires" in line or "must" in line), "")
