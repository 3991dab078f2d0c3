"""Hyperparameters that contradict each other, by the rules of each architecture.

llama.cpp states its assumptions about a model as assertions, which end the process: in load_hparams and
load_arch_hparams (src/llama-model.cpp, src/models/*.cpp), while it builds the graph of an architecture (the
same files), and in ggml's operators where shapes that follow from the hyperparameters do not fit together.
Each rule below stands for such an assertion and names the keys it weighs. What the engine itself reports as
an error, like tensors of another shape than the keys say, has no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from llmrun.gguf.facts import ModelFacts
from llmrun.gguf.header import GgufHeader
from llmrun.gguf.hyperparameters import Hyperparameters
from llmrun.gguf.layers import per_layer

_Rule = Callable[[Hyperparameters], str | None]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# GGML_ASSERT(n_embd_head == hparams.n_embd_head_k()); lfm2: n_embd_v_gqa == n_embd_k_gqa.
_EQUAL_LENGTHS = _names(
    """
    afmoe apertus arcee arctic baichuan bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm cohere2
    cohere2moe command-r dbrx deci deepseek dots1 ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon glm4
    glm4moe gpt2 gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe
    hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 laguna lfm2 lfm2moe llama llama4 maincoder
    maple mellum minicpm minimax-01 minimax-m2 minimax-m3 mistral3 mpt muse-glimmer nanbeige nemotron
    nemotron_h olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo qwen qwen2
    qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3vl qwen3vlmoe refact seed_oss smallthinker smollm3
    spark2_5 stablelm starcoder starcoder2 talkie xverse
    """
)
# GGML_ASSERT(n_embd_head == n_rot).
_ROTATE_ALL = _names(
    """
    apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deepseek dots1 ernie4_5
    ernie4_5-moe exaone exaone-moe exaone4 granite granite_swa granitemoe graniteswitch grok grovemoe
    hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llama4 maincoder mellum minicpm mistral3 olmo
    olmo2 olmoe orion paddleocr pangu-embedded plamo qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe
    seed_oss smallthinker smollm3 starcoder2 talkie xverse
    """
)
# The output projection takes {n_embd, n_embd}, whatever the heads are.
_HEADS_FILL_EMBEDDING = _names(
    """
    arctic baichuan bitnet bloom chameleon chatglm codeshell cohere2 command-r dbrx deepseek deepseek2-ocr
    exaone4 falcon gpt2 gptneox grok internlm2 jais jamba lfm2 lfm2moe mpt nemotron olmo olmo2 olmoe orion
    phi2 phi3 phimoe plamo qwen qwen2 qwen2moe qwen2vl stablelm starcoder starcoder2 xverse
    """
)
_HEADS_OF_ROTATION = frozenset({"gpt-oss", "bailingmoe"})  # Q, K and V take n_head * n_rot
_LATENT = frozenset({"deepseek2", "mistral4"})
_TWICE_THE_EMBEDDING = frozenset({"granitehybrid", "jamba"})
_DELTA_NET = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_MAMBA2 = frozenset({"mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"})
# The graph has inputs for both kinds of layers, and an input nobody reads has no buffer.
_TWO_KINDS = _names("granitehybrid jamba lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next qwen35 qwen35moe")
_WINDOW_ALWAYS = _names(
    """
    cohere2 cohere2moe exaone-moe gemma2 gemma3n gemma4 gpt-oss granite_swa llama4 maple mimo2 muse-glimmer
    spark2_5 step35
    """
)
_WINDOW_IF_GIVEN = _names("afmoe exaone4 gemma3 laguna mellum olmo2 plamo3 smallthinker")
_SHARED_CACHE = frozenset({"gemma3n", "gemma4"})
_GEMMA3N_OWN_CACHES = 20
_ALWAYS_SECTIONS = _names("paddleocr qwen2vl qwen35 qwen35moe qwen3vl qwen3vlmoe")
_SECTIONS_IF_GIVEN = frozenset({"glm4", "glm4moe", "hunyuan_vl"})
_ALWAYS_EXPERTS = frozenset({"bailingmoe2", "glm4moe", "grovemoe", "smallthinker"})
_GATED = _names(  # those that read expert_gating_func
    """
    afmoe bailingmoe2 cohere2moe deepseek2 deepseek2-ocr deepseek32 dots1 dots3note exaone-moe glm-dsa glm4moe
    hy_v3 hy_v4 kimi-linear laguna lfm2moe minimax-m2 minimax-m3 mistral4 smallthinker step35
    """
)
_LAST_GATING = 4
_LLAMA4_PERIOD = 4


def _equal_lengths(m: Hyperparameters) -> str | None:
    key, value = m.of_first_layer("attention.key_length"), m.of_first_layer("attention.value_length")
    if not m.heads or m.number(key) == m.number(value):
        return None
    return f"{m.said(key)}, but {m.said(value)}; the engine takes this architecture with equal ones only"


def _rotate_all(m: Hyperparameters) -> str | None:
    rotated, size = m.of_first_layer("rope.dimension_count"), m.of_first_layer("attention.key_length")
    if not m.heads or m.number(rotated) == m.number(size):
        return None
    return f"{m.said(rotated)}, but {m.said(size)}; the engine rotates whole heads of this architecture"


def _heads_fill_embedding(m: Hyperparameters) -> str | None:
    size = m.number("attention.value_length")
    for heads, kv_heads in zip(m.facts.n_head, m.facts.n_head_kv, strict=False):
        if heads and kv_heads and heads * size != m.facts.n_embd:
            return (
                f"{m.arch}.attention.head_count is {heads:,} heads of {size:,} numbers, "
                f"but {m.said('embedding_length')}"
            )
    return None


def _heads_of_rotation(m: Hyperparameters) -> str | None:
    for suffix in ("", "_swa") if any(m.windows) else ("",):
        rotated = f"rope.dimension_count{suffix}"
        for length in (f"attention.key_length{suffix}", f"attention.value_length{suffix}"):
            if m.number(length) != m.number(rotated):
                return f"{m.said(length)}, but {m.said(rotated)}; they must be equal"
    return None


def _latent_attention(m: Hyperparameters) -> str | None:
    latent = m.number("attention.key_length_mla") > 0 and m.number("attention.value_length_mla") > 0
    key = "attention.key_length_mla" if latent else "attention.key_length"
    if m.number(key) <= m.number("rope.dimension_count"):
        return f"{m.said(key)}, no more than {m.said('rope.dimension_count')}"
    if not latent:
        return None
    if set(m.facts.n_head_kv) != {1}:
        return (
            f"{m.arch}.attention.head_count_kv is {max(m.facts.n_head_kv):,}, "
            f"but {m.said('attention.key_length_mla')}, which takes 1"
        )
    wide = m.number("attention.kv_lora_rank") + m.number("rope.dimension_count")
    parts = f"{m.said('attention.kv_lora_rank')}, {m.said('rope.dimension_count')}"
    return m.must_equal("attention.key_length", parts, wide)


def _inner_is_twice_the_embedding(m: Hyperparameters) -> str | None:
    return m.must_equal("ssm.inner_size", f"twice {m.arch}.embedding_length", 2 * m.facts.n_embd)


def _delta_net(m: Hyperparameters) -> str | None:
    interval = "full_attention_interval"
    if m.has(interval) and m.number(interval) < 1 and not m.has("attention.recurrent_layers"):
        return f"{m.said(interval)}, but every so many layers one attends"
    wide = m.number("ssm.state_size") * m.number("ssm.time_step_rank")
    parts = f"{m.said('ssm.state_size')}, {m.said('ssm.time_step_rank')}"
    return m.must_equal("ssm.inner_size", parts, wide) or m.must_divide(
        "ssm.time_step_rank", "ssm.group_count"
    )


def _mamba2(m: Hyperparameters) -> str | None:
    return (
        m.must_divide("ssm.inner_size", "ssm.time_step_rank")
        or m.must_divide("ssm.inner_size", "ssm.group_count")
        or m.must_divide("ssm.time_step_rank", "ssm.group_count")
    )


def _plamo2(m: Hyperparameters) -> str | None:
    return m.must_divide("ssm.inner_size", "ssm.time_step_rank") or m.must_equal(
        "ssm.group_count", "the engine knows no groups here", 0
    )


def _two_kinds(m: Hyperparameters) -> str | None:
    states, trunk = m.states(), m.layers - m.number("nextn_predict_layers")
    if any(states.layers[:trunk]) and any(states.attends[:trunk]):
        return None
    missing = "attends" if any(states.layers) else "keeps a state"
    key = "attention.head_count_kv" if m.arch not in _DELTA_NET else "full_attention_interval"
    return f"none of its {m.layers:,} layers {missing} by {m.arch}.{key}, and the engine needs both kinds"


def _some_window(m: Hyperparameters) -> str | None:
    key = f"{m.arch}.attention.sliding_window_pattern"
    listed = m.header.array(key)
    nowhere = m.header.integer(key) == 1 or (listed is not None and not any(listed[: m.layers]))
    if m.facts.window.n_swa > 0:
        nowhere = not any(m.windows)
    elif m.arch in _WINDOW_IF_GIVEN:
        return None
    return f"{key} leaves none of {m.layers:,} layers with a window" if nowhere else None


def _window_rotation(m: Hyperparameters) -> str | None:
    if not any(m.windows) or m.number("rope.dimension_count_swa") <= m.number("attention.key_length_swa"):
        return None
    return f"{m.said('rope.dimension_count_swa')}, but {m.said('attention.key_length_swa')}"


def _shared_cache(m: Hyperparameters) -> str | None:
    """Later layers read the cache of the last own window layer and the last own full layer."""
    shared = m.number("attention.shared_kv_layers")
    start = _GEMMA3N_OWN_CACHES if m.arch == "gemma3n" else m.layers - shared
    what = f"{m.layers:,} layers, the last {max(0, m.layers - start):,} without a cache of their own"
    if start < 2:
        return f"{what} ({m.arch}.block_count, {m.arch}.attention.shared_kv_layers)"
    for il in range(start, m.layers):
        source = start - (2 if m.windows[il] else 1)
        if m.windows[source] != m.windows[il]:
            kind = "a window" if m.windows[il] else "no window"
            return (
                f"{what}: layer {il:,} has {kind} and layer {source:,}, whose cache it reads, has another "
                f"kind ({m.arch}.attention.sliding_window_pattern)"
            )
    return None


def _chunks(m: Hyperparameters) -> str | None:
    if m.has("attention.sliding_window") and m.number("attention.sliding_window") == 0:
        return f"{m.said('attention.sliding_window')}; the engine cannot run this architecture without one"
    if m.layers < _LLAMA4_PERIOD:
        return f"{m.said('block_count')}, but every {_LLAMA4_PERIOD}th layer goes without rotation"
    return None


def _sections(m: Hyperparameters) -> str | None:
    key = f"{m.arch}.rope.dimension_sections"
    sections = per_layer(m.header, key, 4, ())
    if not sections or (m.arch in _SECTIONS_IF_GIVEN and min(sections[:2]) <= 0):
        return None
    if max(sections[:3]) > 0 and 0 < sum(sections) <= m.number("attention.key_length"):
        return None
    return f"{key} is {', '.join(map(str, sections))}, but {m.said('attention.key_length')}"


def _expert_groups(m: Hyperparameters) -> str | None:
    experts, groups = m.number("expert_count"), m.number("expert_group_count")
    if groups == 0 or (experts and groups == 1 < experts):
        return None
    if groups >= experts or experts % groups:
        return f"{m.said('expert_group_count')}, but {m.said('expert_count')}"
    if not 0 < m.number("expert_group_used_count") < groups:
        return f"{m.said('expert_group_used_count')}, but {m.said('expert_group_count')}"
    return None


def _gating(m: Hyperparameters) -> str | None:
    if not m.number("expert_count") or m.number("expert_gating_func") <= _LAST_GATING:
        return None
    return (
        f"{m.said('expert_gating_func')}, the engine knows 0 to {_LAST_GATING} for {m.said('expert_count')}"
    )


def _some_experts(m: Hyperparameters) -> str | None:
    if m.number("expert_count"):
        return None
    return f"{m.said('expert_count')}, but the engine takes this architecture with experts only"


def _experts_after_dense(m: Hyperparameters) -> str | None:
    dense = "leading_dense_block_count"
    if m.number("expert_count") or m.number(dense) >= m.layers:
        return None
    return f"{m.said('expert_count')}, but {m.said(dense)} of {m.layers:,} layers"


def _expert_step(m: Hyperparameters) -> str | None:
    key = "interleave_moe_layer_step"
    return f"{m.said(key)}, plausible is 1 or more" if m.has(key) and m.number(key) < 1 else None


_RULES: tuple[tuple[Collection[str] | None, _Rule], ...] = (
    (_EQUAL_LENGTHS, _equal_lengths),
    (_ROTATE_ALL, _rotate_all),
    (_HEADS_FILL_EMBEDDING, _heads_fill_embedding),
    (_HEADS_OF_ROTATION, _heads_of_rotation),
    (_LATENT, _latent_attention),
    (_TWICE_THE_EMBEDDING, _inner_is_twice_the_embedding),
    (_DELTA_NET, _delta_net),
    (_MAMBA2, _mamba2),
    ({"plamo2"}, _plamo2),
    (_TWO_KINDS, _two_kinds),
    (_WINDOW_ALWAYS | _WINDOW_IF_GIVEN, _some_window),
    (None, _window_rotation),
    (_SHARED_CACHE, _shared_cache),
    ({"llama4"}, _chunks),
    (_ALWAYS_SECTIONS | _SECTIONS_IF_GIVEN, _sections),
    (None, _expert_groups),
    (_GATED, _gating),
    (_ALWAYS_EXPERTS, _some_experts),
    ({"lfm2moe"}, _experts_after_dense),
    ({"ernie4_5-moe"}, _expert_step),
)


def contradiction(header: GgufHeader, facts: ModelFacts) -> str | None:
    """The first rule a header breaks, in words that name its keys and values; None where it breaks none.

    Every number must have passed `check`'s ranges before.
    """
    model = Hyperparameters(header, facts)
    for archs, rule in _RULES:
        if archs is None or facts.arch in archs:
            broken = rule(model)
            if broken is not None:
                return broken
    return None
