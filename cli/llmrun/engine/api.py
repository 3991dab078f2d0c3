"""The engine as the rest of the program sees it: token ids in, token ids out, never text streams.

`Engine` is the seam. `engine/llama.py` implements it over llama.cpp, `engine/scripted.py` without any
library; a remote one can follow. One engine holds one model and one context with `n_seq` sequences, and
its decode loop serves any set of them. Only `interrupt` may be called from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Literal, Protocol

from llmrun.errors import PromptTooLong, UsageError
from llmrun.prefix.reuse import MemoryKind

FlashAttention = Literal["on", "off", "auto"]
GpuLayers = int | Literal["auto", "all"]
DecodeResult = Literal["ok", "aborted", "full"]
EndReason = Literal["eog", "length", "context", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Rotary position scaling. None leaves the model's own value."""

    scaling: Literal["none", "linear", "yarn"] | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How weights are loaded and where they go, with llama.cpp's meanings.

    `gpu_layers` counts back from the output; auto = all if there is a GPU. `tensor_split` weighs the GPUs
    that share the layers, in the engine's order; empty = by free memory. `main_gpu` puts all on that one.
    `cpu_moe` keeps the experts of every layer on the CPU, `n_cpu_moe` those of the first layers.
    `override_tensor` pairs a regular expression for tensor names with a buffer type; the first match counts.
    `rpc` lists the servers ("host:port") whose devices are added first. `devices` names the GPUs to use, in
    the order in which shares and `main_gpu` count them; None = all, in the engine's order.
    """

    path: str
    gpu_layers: GpuLayers = "auto"
    use_mmap: bool = True
    use_mlock: bool = False
    tensor_split: tuple[float, ...] = ()
    main_gpu: int | None = None
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    rpc: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ContextParams:
    """The context to create. `n_ctx` counts all cells, 0 = trained length; the engine may round it up."""

    n_ctx: int = 8192
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq: int = 1
    kv_unified: bool = True
    n_threads: int = 1
    n_threads_batch: int = 1
    flash_attn: FlashAttention = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = False
    offload_kqv: bool = True
    rope: RopeParams = field(default_factory=RopeParams)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampler chain settings; defaults are llama.cpp's. `temperature` 0 is greedy. `seed` None draws one."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class CacheBlock:
    """One K/V or recurrent buffer the engine reports: `cells` positions over `n_stream` streams on `device`.

    `kind`: "full" attention, "swa" sliding window, "recurrent" state.
    """

    kind: Literal["full", "swa", "recurrent"]
    device: str
    size_bytes: int
    cells: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The library's build and devices, and the model by the library's own description, e.g. `llama 8B Q4_K`.

    `model_bytes` counts the tensors, not the file. `backends` as llama-bench joins them.
    """

    build: str = ""
    backends: str = "CPU"
    cpu_info: str = ""
    gpu_info: str = ""
    model_type: str = ""
    model_bytes: int = 0
    n_params: int = 0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was really created, after the engine's rounding. Counts are tokens, sizes bytes.

    `long_rope`: the context is too large for the short factors of a LongRoPE model.
    `compute_bytes`: scratch and output buffers of the context, `weights_bytes`: the model's, each by device.
    `mapped`: the model's file is mapped, not read.
    """

    n_ctx: int
    n_ctx_seq: int
    n_ctx_train: int
    n_seq: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    n_vocab: int
    n_swa: int
    swa_full: bool
    gpu_layers_requested: GpuLayers
    gpu_layers: int
    flash_attn: str
    type_k: str
    type_v: str
    add_bos: bool
    bos_text: str
    eos_text: str
    cache_blocks: tuple[CacheBlock, ...]
    extra_bufts: bool
    library: str
    identity: Identity = field(default_factory=Identity)
    memory: MemoryKind = field(default_factory=MemoryKind)
    long_rope: bool = False
    compute_bytes: Mapping[str, int] = field(default_factory=dict)
    weights_bytes: Mapping[str, int] = field(default_factory=dict)
    mapped: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """Make sequence `seq` hold `prompt`, then sample up to `max_tokens` (0: none, None: no bound).

    `logprobs`: report each token's log probability and those of so many of the likeliest tokens.
    `marks`: positions in the prompt at which a slice of the prefill ends, so that a state can be saved there.
    """

    seq: int
    prompt: Sequence[int]
    sampling: SamplingParams
    max_tokens: int | None = None
    logprobs: int | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a sequence's memory held, copied out. Only the engine reads `data`; it may lie in a mapped file.

    `pos_min`: first position it has in all layers. `partial`: only the part that forgets (windows, recurrent
    states), which is put back under the same tokens. `long_rope`: whether its context was too large for the
    short factors of a LongRoPE model; None where it is known to fit.
    """

    data: bytearray | memoryview
    pos_min: int
    partial: bool = False
    long_rope: bool | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the copy."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities before any sampler: of the token, and of the likeliest ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """`done` of `total` tokens are evaluated; `reused` prompt tokens were already held."""

    seq: int
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class TokenStep:
    """A token was sampled (`eog`: it ends the turn and must not be shown)."""

    seq: int
    token: int
    eog: bool
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class EndStep:
    """The sequence takes no more tokens."""

    seq: int
    reason: EndReason


Step = PrefillStep | TokenStep | EndStep


class Run(Protocol):
    """A decode loop under way: iterate once for its steps, `stop` a sequence whose answer is complete."""

    def __iter__(self) -> Iterator[Step]: ...

    def stop(self, seq: int) -> None:
        """End `seq` with `EndStep(reason="stopped")`. When asked on one of its own steps, nothing of it
        comes between; when asked on another sequence's, the token that is being computed still comes."""
        ...

    def force(self, seq: int, tokens: Sequence[int]) -> None:
        """Let the next tokens of `seq` be these instead of sampled ones."""
        ...

    def go_on(self, seq: int) -> None:
        """Take back the `EndStep(reason="context")` of `seq` that came last, since the engine was resized.

        What the sequences no longer hold is evaluated again. Samplers go on as they were, so that a seed
        draws what it would have drawn in a context of that size from the start."""
        ...


class Engine(Protocol):
    """A loaded model with its context. Raises `EngineFailure` when the library fails."""

    @property
    def facts(self) -> EngineFacts: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special` adds BOS where the vocabulary wants one; `parse_special`
        turns the text of control tokens into those tokens, else it stays text."""
        ...

    def piece(self, token: int) -> bytes:
        """Bytes of one token, control tokens by their name. May be part of a UTF-8 character."""
        ...

    def is_control(self, token: int) -> bool:
        """True for tokens that are never shown."""
        ...

    def held(self, seq: int) -> Sequence[int]:
        """Tokens whose K/V sequence `seq` holds, in order of position."""
        ...

    def run(self, jobs: Sequence[Job]) -> Run:
        """Decode `jobs`, one per sequence, as the result is iterated. Before the first step that raises
        `UsageError` for an empty prompt and `PromptTooLong` for one beyond `n_ctx_seq` tokens."""
        ...

    def feed(self, pairs: Sequence[tuple[int, int]]) -> DecodeResult:
        """Evaluate (sequence, token) pairs after what the sequences hold, `n_batch` at a time, and wait until
        that is done. Nothing is sampled. "full": the cache has no room; "aborted": interrupted; what was
        evaluated before stays."""
        ...

    def rewind(self, seq: int, n_tokens: int) -> int:
        """Forget what `seq` holds after its first `n_tokens`. Returns how many it still holds: fewer where
        its memory cannot go back that far."""
        ...

    def pos_min(self, seq: int) -> int:
        """First position that `seq` still has in all its layers, 0 when it is empty."""
        ...

    def save(self, seq: int, *, partial: bool = False) -> State:
        """Copy what `seq` holds. `partial` on a memory that forgets nothing may be as large as the whole."""
        ...

    def restore(self, seq: int, state: State, tokens: Sequence[int]) -> bool:
        """Make `seq` hold `tokens`, whose memory `state` is; a partial one needs a sequence that begins with
        them. False where that cannot be: the sequence is then unchanged or empty, as `held` tells."""
        ...

    def resize(self, n_ctx: int) -> bool:
        """Give the context `n_ctx` cells, more than it has; what the sequences hold stays, unless the library
        fails to put it back. False where the memory has no room: everything is then as before."""
        ...

    def interrupt(self) -> None:
        """Make the running loop, or the next one, end soon as "interrupted". Safe from any thread."""
        ...

    def resume(self) -> None:
        """Take back an interrupt; called before a new request."""
        ...

    def close(self) -> None:
        """Free context and model. Further use is an error; closing twice is not."""
        ...


def check_prompts(jobs: Sequence[Job], n_ctx_seq: int) -> None:
    """Refuse prompts that no engine can evaluate: there must be a token, and room for all of them.

    Raises:
        UsageError: a prompt is empty.
        PromptTooLong: a prompt has more tokens than a sequence holds.
    """
    for job in jobs:
        if not job.prompt:
            raise UsageError("the prompt has no tokens", "give it some text")
        if len(job.prompt) > n_ctx_seq:
            raise PromptTooLong(
                f"the prompt has {len(job.prompt):,} tokens, the context holds {n_ctx_seq:,}",
                "use a larger -c, or shorten the prompt",
            )


def slices(start: int, end: int, size: int, marks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Cut the positions from `start` to `end` into slices of `size`, anew at each of `marks`."""
    for stop in sorted({end, *(mark for mark in marks if start < mark < end)}):
        while start < stop:
            part_end = min(start + size, stop)
            yield start, part_end
            start = part_end


EngineFactory = Callable[[ModelParams, ContextParams, Callable[[float], None], Event], Engine]
"""Opens an engine. The third argument is told the share of weights read (0 to 1); setting the fourth
from another thread cancels the load."""
