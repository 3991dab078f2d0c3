"""The one table of settings: names, allowed values, defaults. Files, environment, flags and docs follow it.

Names are those of the JSON `settings` object, defaults those of llama.cpp's own tools unless the help says
otherwise. Sampling defaults and their order of application: docs/reference/config.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from llmrun.config.kinds import (
    INT32_MAX,
    BiasMap,
    Choice,
    Kind,
    Number,
    Shares,
    Switch,
    Text,
    TextList,
    Value,
)

Group = Literal["hardware", "context", "sampling", "output"]
GROUPS: tuple[Group, ...] = ("hardware", "context", "sampling", "output")

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
UNQUANTISED_KV_TYPES = ("f32", "f16", "bf16")
DEFAULT_CTX = 8192
"""Window in tokens where `n_ctx` is "auto" and the model was trained for at least as many."""

MAX_THREADS, MAX_SEQUENCES = 512, 256  # fixed in the engine (GGML_MAX_N_THREADS, LLAMA_MAX_SEQ)
MAX_SEED = 0xFFFF_FFFE  # the next number means "random" to the engine


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: `flag` is its spelling on the command line, empty for an argument."""

    name: str
    group: Group
    kind: Kind
    default: Value
    flag: str
    help: str

    @property
    def env(self) -> str:
        """Its environment variable."""
        return env_name(self.name)

    @property
    def is_free_text(self) -> bool:
        """True where the value is the user's own words, which logs leave out."""
        return isinstance(self.kind, Text | TextList)


def env_name(name: str) -> str:
    """`n_ctx` -> `LLMRUN_CTX`: the name in capitals without the `n_` of counts, where that is unambiguous."""
    return "LLMRUN_" + (name if name == "n_cpu_moe" else name.removeprefix("n_")).upper()


def _count(low: int, high: int = INT32_MAX, **words: int | str | None) -> Number:
    return Number(low, high, words)


_THREADS = _count(1, MAX_THREADS, auto="auto")
_LAYERS = Number(0, INT32_MAX, {"auto": "auto", "all": "all", "-1": "all"})
_SEED = Number(0, MAX_SEED, {"random": None, "-1": None})
_LENGTH = Number(1, INT32_MAX, {"unlimited": None, "-1": None})
_MODEL_WORD: Mapping[str, int | str | None] = {"model": None}
_POSITIVE = Number(0, words=_MODEL_WORD, whole=False, above_low=True)
_KV = Choice(KV_TYPES)
_ON_OFF_AUTO = Choice(("on", "off", "auto"))
_ANY_REAL = Number(whole=False)
_SHARE = Number(0, 1, whole=False)
_OVERRIDES = TextList(r".+?=[^=,]+(,.+?=[^=,]+)*", "a list of texts like PATTERN=BUFFER")
_SERVERS = TextList(r"[^\s,]+:\d+(,[^\s,]+:\d+)*", "a list of servers, each as HOST:PORT")
_SHARE_ABOVE_0 = Number(0, 1, whole=False, above_low=True)

SETTINGS: tuple[Setting, ...] = (
    Setting("n_threads", "hardware", _THREADS, "auto", "-t",
            "threads that generate; auto: fast physical cores this process may use"),
    Setting("n_threads_batch", "hardware", _THREADS, "auto", "-tb",
            "threads that evaluate prompts; auto: as for generation"),
    Setting("n_batch", "hardware", _count(1), 2048, "-b",
            "most prompt tokens handed to the engine at once"),
    Setting("n_ubatch", "hardware", _count(1), 512, "-ub",
            "prompt tokens evaluated in one step; more is faster and takes more memory"),
    Setting("n_gpu_layers", "hardware", _LAYERS, "auto", "-ngl",
            "layers on the GPU, from the output back; 0: none; all (or -1): every one; auto: as many as fit"),
    Setting("strict_offload", "hardware", Switch(), False, "--strict",
            "an error instead of a warning where layers are asked for and there is no GPU"),
    Setting("tensor_split", "hardware", Shares(), (), "--tensor-split",
            "shares of the GPUs in the layers, such as 3,1; none: by free memory"),
    Setting("main_gpu", "hardware", _count(0, none=None), None, "--main-gpu",
            "number of the one GPU to use, counted from 0; none: all of them"),
    Setting("cpu_moe", "hardware", Switch(), False, "--cpu-moe",
            "keep the experts of all layers in main memory"),
    Setting("n_cpu_moe", "hardware", _count(0), 0, "--n-cpu-moe",
            "keep the experts of so many layers, from the first on, in main memory"),
    Setting("override_tensor", "hardware", _OVERRIDES, (), "--override-tensor",
            "put tensors whose name matches into a buffer: CPU or a device's; the first that matches counts"),
    Setting("rpc", "hardware", _SERVERS, (), "--rpc",
            "use the devices of the engine's RPC server there as GPUs"),
    Setting("offload_kqv", "hardware", Switch(), True, "--kv-offload",
            "keep the K/V cache of a layer on the layer's device instead of in main memory"),
    Setting("flash_attn", "hardware", _ON_OFF_AUTO, "auto", "-fa",
            "flash attention; a quantised V cache needs it"),
    Setting("use_mmap", "hardware", Switch(), True, "--mmap",
            "map the model file instead of reading it into memory"),
    Setting("use_mlock", "hardware", Switch(), False, "--mlock",
            "keep the model in main memory, never swapped out"),
    Setting("model", "context", Text(), None, "",
            "model that answers when none is named; none: the one that comes with llmrun"),
    Setting("n_ctx", "context", _count(0, auto="auto", max=0), "auto", "-c",
            f"window in tokens; auto: {DEFAULT_CTX:,}, or the trained length if that is smaller, growing to "
            "that length as memory allows; max (or 0): the trained length"),
    Setting("n_parallel", "context", _count(1, MAX_SEQUENCES), 1, "-np",
            "sequences the context holds"),
    Setting("kv_unified", "context", Switch(), True, "--kv-unified",
            "sequences share one K/V cache instead of an equal part each"),
    Setting("type_k", "context", _KV, "f16", "-ctk", "number format of cached keys"),
    Setting("type_v", "context", _KV, "f16", "-ctv", "number format of cached values"),
    Setting("swa_full", "context", Switch(), False, "--swa-full",
            "sliding-window layers keep every position: more memory, any prefix can be reused"),
    Setting("prefix_cache", "context", Switch(), True, "--prefix-cache",
            "keep evaluated prefixes in memory and on disk for later prompts that begin alike"),
    Setting("prefix_cache_mib", "context", _count(0, auto="auto"), "auto", "--prefix-cache-mib",
            "most disk space for them in MiB; auto: a tenth of what is free, at most 16 GiB; 0: none"),
    Setting("rope_scaling", "context", Choice(("none", "linear", "yarn"), "model"), None, "--rope-scaling",
            "how positions beyond the trained length are scaled; model: as the file says"),
    Setting("rope_freq_base", "context", _POSITIVE, None, "--rope-freq-base",
            "base frequency of rotary positions; model: as the file says"),
    Setting("rope_freq_scale", "context", _POSITIVE, None, "--rope-freq-scale",
            "factor on rotary positions, 0.5 doubles the reach; model: as the file says"),
    Setting("yarn_orig_ctx", "context", Number(1, INT32_MAX, _MODEL_WORD), None, "--yarn-orig-ctx",
            "length YaRN takes as trained; model: as the file says"),
    Setting("temperature", "sampling", Number(0, whole=False), 0.8, "--temp",
            "how far sampling strays from the likeliest token; 0: never"),
    Setting("top_k", "sampling", _count(0), 40, "--top-k", "keep the k likeliest tokens; 0: all"),
    Setting("top_p", "sampling", _SHARE, 0.95, "--top-p",
            "keep the likeliest tokens that add up to this probability; 1: all"),
    Setting("min_p", "sampling", _SHARE, 0.05, "--min-p",
            "drop tokens below this share of the likeliest one's probability; 0: none"),
    Setting("typical_p", "sampling", _SHARE_ABOVE_0, 1.0, "--typical",
            "keep tokens of typical information that add up to this probability; 1: all"),
    Setting("repeat_penalty", "sampling", Number(0, whole=False, above_low=True), 1.0, "--repeat-penalty",
            "weaken the logits of recent tokens by this factor; 1: no penalty"),
    Setting("repeat_last_n", "sampling", Number(-1, INT32_MAX), 64, "--repeat-last-n",
            "how many recent tokens the penalties look at; 0: none, -1: the window"),
    Setting("frequency_penalty", "sampling", _ANY_REAL, 0.0, "--frequency-penalty",
            "lower a recent token's logit by this for each occurrence"),
    Setting("presence_penalty", "sampling", _ANY_REAL, 0.0, "--presence-penalty",
            "lower a recent token's logit by this once"),
    Setting("seed", "sampling", _SEED, None, "-s",
            "start of the random numbers: the same seed repeats an answer; random (or -1): a new one each"),
    Setting("logit_bias", "sampling", BiasMap(), (), "--logit-bias", "numbers added to the logits of tokens"),
    Setting("max_tokens", "output", _LENGTH, None, "-n",
            "most tokens an answer may have; unlimited (or -1): until the model ends or the window is full"),
    Setting("overflow", "output", Choice(("stop", "drop", "summarize")), "drop", "--overflow",
            "what to do with a conversation that outgrows the window: refuse to go on, leave its oldest "
            "exchanges out, or put a summary in their place"),
    Setting("overflow_headroom", "output", Number(0, 0.9, whole=False), 0.25, "--overflow-headroom",
            "share of the window freed beyond need when something is left out, so that it happens rarely"),
    Setting("stop", "output", TextList(), (), "--stop", "texts that end the answer; they are not shown"),
    Setting("system", "output", Text(), None, "-sys", "system message; @FILE reads one"),
    Setting("fold_system", "output", Switch(), True, "--fold-system",
            "put the system message into the first user message where the template takes none"),
    Setting("think", "output", Choice(("show", "dim", "hide")), "hide", "--think",
            "the model's reasoning: show on stdout, dim on stderr, or hide"),
    Setting("panel", "output", Choice(("full", "line", "off")), "full", "--panel",
            "how figures are shown: a panel, one line, or not at all"),
    Setting("markdown", "output", Switch(), False, "--markdown",
            "style Markdown on a terminal (headings, emphasis, code); the text itself is not changed"),
    Setting("think_budget", "output", _LENGTH, None, "--think-budget",
            "tokens of reasoning after which the block is closed, so that the answer begins"),
    Setting("stats", "output", _ON_OFF_AUTO, "auto", "--stats",
            "figures after the answer; auto: when stdout and stderr are terminals"),
)  # fmt: skip

BY_NAME: Mapping[str, Setting] = {s.name: s for s in SETTINGS}

KV_TYPE = Setting(
    "kv_type",
    "context",
    _KV,
    None,
    "--kv-type",
    "sets type_k and type_v, each unless it is set in the same place",
)
"""Shorthand in files, environment and flags; never a setting of its own."""

RESERVED_ENV = frozenset({"LLMRUN_DEBUG", "LLMRUN_CONFIG_DIR", "LLMRUN_CACHE_DIR", "LLMRUN_DATA_DIR"})
"""Variables of this prefix that are not settings."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, None if none is close."""
    import difflib

    found = difflib.get_close_matches(word.casefold(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggest_setting(word: str) -> str | None:
    """The setting a mistyped key most likely means, also when it is spelt like the flag."""
    spellings = {s.flag.lstrip("-").replace("-", "_"): s.name for s in SETTINGS if s.flag.startswith("--")}
    spellings.update({s.name.removeprefix("n_"): s.name for s in SETTINGS})
    spellings.update({s.name: s.name for s in (*SETTINGS, KV_TYPE)})
    found = nearest(word.replace("-", "_"), spellings)
    return spellings[found] if found else None
