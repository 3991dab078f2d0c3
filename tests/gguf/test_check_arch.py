"""Each rule refuses a contradiction the engine would abort on, and nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmrun.errors import NotAModel
from llmrun.gguf.check import check_runnable
from llmrun.gguf.check_arch import contradiction
from llmrun.gguf.check_tensors import tensor_fault
from llmrun.gguf.facts import model_facts
from llmrun.gguf.reader import parse_header, read_header

from tests.support.archs import ARCHS, FULL_SIZE, write_arch, write_full_size
from tests.support.fates import RAN, fates
from tests.support.gguf_writer import Value, ValueType, array_of, header_bytes


@dataclass(frozen=True)
class Pair:
    """A contradiction and a file beside it that the engine runs; `named` are the keys a message gives."""

    arch: str
    broken: Mapping[str, Any]
    named: tuple[str, ...]
    sound: Mapping[str, Any] = field(default_factory=dict)


def extra(**keys: Value) -> dict[str, Any]:
    """Keys of the architecture, with `__` for a dot."""
    return {"extra": {key.replace("__", "."): value for key, value in keys.items()}}


def sections(*numbers: int) -> dict[str, Any]:
    return extra(rope__dimension_sections=array_of(ValueType.I32, numbers))


SWA = "attention.sliding_window_pattern"
PAIRS: dict[str, Pair] = {
    "key is not value": Pair(
        "qwen2", extra(attention__key_length=64), ("attention.key_length", "attention.value_length")
    ),
    "key of a window layer": Pair(
        "cohere2",
        extra(attention__key_length_swa=16),
        ("attention.key_length_swa", "attention.value_length_swa"),
    ),
    "part of a head": Pair(
        "qwen3", {"n_rot": 16}, ("rope.dimension_count", "attention.key_length"), {"n_rot": 32}
    ),
    "part of a head, experts": Pair(
        "qwen3moe", {"n_rot": 16}, ("rope.dimension_count", "attention.key_length")
    ),
    "part of a head, chunks": Pair("llama4", {"n_rot": 16}, ("rope.dimension_count", "attention.key_length")),
    "fewer heads": Pair(
        "qwen2", extra(attention__head_count=2), ("attention.head_count", "embedding_length")
    ),
    "more heads": Pair(
        "cohere2", extra(attention__head_count=8), ("attention.head_count", "embedding_length")
    ),
    "heads of a hybrid": Pair(
        "lfm2", extra(attention__head_count=2), ("attention.head_count", "embedding_length")
    ),
    "heads in one matrix": Pair(
        "phi3", extra(attention__head_count=2), ("attention.head_count", "embedding_length")
    ),
    "key is not rotation": Pair(
        "gpt-oss", extra(attention__key_length=64), ("attention.key_length", "rope.dimension_count")
    ),
    "value is not rotation": Pair(
        "gpt-oss", extra(attention__value_length=16), ("attention.value_length", "rope.dimension_count")
    ),
    "latent heads": Pair("deepseek2", {"n_head_kv": 2}, ("attention.head_count_kv",)),
    "latent row": Pair(
        "deepseek2",
        extra(attention__key_length=95),
        ("attention.key_length", "attention.kv_lora_rank", "rope.dimension_count"),
        {"kv_rank": 32},
    ),
    "latent key": Pair(
        "deepseek2",
        extra(attention__key_length_mla=32),
        ("attention.key_length_mla", "rope.dimension_count"),
        {"head_k_mla": 40},
    ),
    "inner size": Pair(
        "granitehybrid", {"d_inner": 512}, ("ssm.inner_size", "embedding_length"), {"n_ff": 64}
    ),
    "delta net": Pair(
        "qwen3next",
        {"d_inner": 64},
        ("ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"),
        {"d_inner": 256, "dt_rank": 8},
    ),
    "delta net groups": Pair(
        "qwen35", {"n_group": 3}, ("ssm.time_step_rank", "ssm.group_count"), {"n_group": 4}
    ),
    "delta net interval": Pair(
        "qwen35", extra(full_attention_interval=0), ("full_attention_interval",), {"interval": 3}
    ),
    "states and heads": Pair(
        "mamba2", {"dt_rank": 3}, ("ssm.inner_size", "ssm.time_step_rank"), {"dt_rank": 4}
    ),
    "states and groups": Pair(
        "mamba2", {"n_group": 3}, ("ssm.inner_size", "ssm.group_count"), {"n_group": 8}
    ),
    "heads and groups": Pair(
        "falcon-h1", {"dt_rank": 1}, ("ssm.time_step_rank", "ssm.group_count"), {"dt_rank": 2}
    ),
    "nothing attends": Pair(
        "lfm2", {"attention_layers": ()}, ("attention.head_count_kv",), {"attention_layers": (0,)}
    ),
    "everything attends": Pair(
        "granitehybrid",
        {"attention_layers": (0, 1, 2)},
        ("attention.head_count_kv",),
        {"attention_layers": (0, 2)},
    ),
    "no interval ends": Pair("qwen3next", {"interval": 5}, ("full_attention_interval",), {"interval": 4}),
    "no window": Pair("gemma2", {"pattern": 1}, (SWA,), {"pattern": 3}),
    "no window, none given": Pair("gpt-oss", {"pattern": 1, "window": 0}, (SWA,), {"pattern": 4}),
    "no window, listed": Pair("gemma3", extra(**{SWA.replace(".", "__"): [False] * 6}), (SWA,)),
    "rotation of window layers": Pair(
        "gemma4",
        extra(rope__dimension_count_swa=64),
        ("rope.dimension_count_swa", "attention.key_length_swa"),
        extra(rope__dimension_count_swa=16),
    ),
    "shared cache of another kind": Pair("gemma4", {"n_shared": 2}, (SWA,), {"n_shared": 6}),
    "no cache to share": Pair(
        "gemma4",
        {"n_shared": 9},
        ("block_count", "attention.shared_kv_layers"),
        {"n_shared": 0},
    ),
    "shared cache in the middle": Pair("gemma3n", {"pattern": 3}, (SWA,), {"pattern": 4}),
    "no window for chunks": Pair("llama4", {"window": 0}, ("attention.sliding_window",), {"window": 128}),
    "too few layers": Pair("llama4", {"n_layer": 3}, ("block_count",), {"n_layer": 5}),
    "empty sections": Pair(
        "qwen35",
        sections(0, 0, 0, 0),
        ("rope.dimension_sections", "attention.key_length"),
        sections(8, 0, 0, 0),
    ),
    "long sections": Pair(
        "qwen35",
        sections(16, 16, 16, 0),
        ("rope.dimension_sections", "attention.key_length"),
        sections(16, 8, 8, 0),
    ),
    "groups without experts": Pair("llama", extra(expert_group_count=1), ("expert_group_count",)),
    "more groups than experts": Pair(
        "qwen3moe", extra(expert_group_count=4), ("expert_group_count", "expert_count")
    ),
    "uneven groups": Pair(
        "deepseek2",
        extra(expert_group_count=3, expert_group_used_count=1),
        ("expert_group_count", "expert_count"),
        extra(expert_group_count=2, expert_group_used_count=1),
    ),
    "groups unused": Pair(
        "qwen3moe",
        extra(expert_group_count=2),
        ("expert_group_used_count", "expert_group_count"),
        extra(expert_group_count=2, expert_group_used_count=1),
    ),
    "unknown gating": Pair(
        "glm4moe", extra(expert_gating_func=5), ("expert_gating_func",), extra(expert_gating_func=1)
    ),
    "no experts": Pair("glm4moe", extra(expert_count=0, expert_used_count=0), ("expert_count",)),
}


def why(path: Path) -> str | None:
    header = read_header(path)
    return contradiction(header, model_facts(header))


def fault(path: Path) -> str | None:
    header = read_header(path)
    return contradiction(header, model_facts(header)) or tensor_fault(header)


@pytest.mark.parametrize("name", PAIRS)
def test_a_contradiction_is_named_and_its_neighbour_passes(tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    told = why(write_arch(tmp_path / "broken.gguf", pair.arch, **pair.broken))
    assert told is not None
    for key in pair.named:
        assert f"{pair.arch}.{key}" in told
    assert len(told) <= 300
    assert fault(write_arch(tmp_path / "sound.gguf", pair.arch, **pair.sound)) is None


def test_a_refusal_names_the_file_and_the_values(tmp_path: Path) -> None:
    path = write_arch(tmp_path / "m.gguf", "qwen2", vocabulary=True, n_rot=16)
    with pytest.raises(NotAModel, match=r"m\.gguf .*rope\.dimension_count is 16.*key_length is 32") as caught:
        check_runnable(read_header(path), name=path.name)
    assert caught.value.exit_code == 4


@pytest.mark.slow
def test_the_engine_agrees(tmp_path: Path) -> None:
    """It ends its process on every contradiction, and runs every neighbour."""
    broken = [write_arch(tmp_path / f"{n}!.gguf", p.arch, **p.broken) for n, p in PAIRS.items()]
    sound = [write_arch(tmp_path / f"{n}.gguf", p.arch, **p.sound) for n, p in PAIRS.items()]
    found = dict(zip(PAIRS, zip(fates(broken), fates(sound), strict=True), strict=True))
    assert {name: fate for name, fate in found.items() if not (fate[0] < 0 and fate[1] == RAN)} == {}


@pytest.mark.parametrize("arch", ARCHS)
def test_sound_models_have_no_fault(tmp_path: Path, arch: str) -> None:
    path = write_arch(tmp_path / "m.gguf", arch, vocabulary=True)
    check_runnable(read_header(path), name=path.name)


@pytest.mark.parametrize("name", FULL_SIZE)
def test_models_of_full_size_have_no_fault(tmp_path: Path, name: str) -> None:
    assert fault(write_full_size(tmp_path / "m.gguf", name)) is None


def keys_only(arch: str, **keys: Value) -> str | None:
    """What is wrong with a header of hyperparameters alone."""
    given: dict[str, Value] = {"block_count": 8, "embedding_length": 256, "attention.head_count": 4}
    given |= {key.replace("__", "."): value for key, value in keys.items()}
    data = header_bytes([("general.architecture", arch), *((f"{arch}.{k}", v) for k, v in given.items())])
    header = parse_header(data)
    return contradiction(header, model_facts(header))


def heads_kv(n_layer: int, n_head_kv: int, *attending: int) -> Value:
    return array_of(ValueType.I32, [n_head_kv if il in attending else 0 for il in range(n_layer)])


def attention(n_layer: int, n_embd: int, heads: int, kv: int, head: int, rot: int = 0) -> dict[str, Value]:
    return {
        "block_count": n_layer,
        "embedding_length": n_embd,
        "attention__head_count": heads,
        "attention__head_count_kv": kv,
        "attention__key_length": head,
        "attention__value_length": head,
        "rope__dimension_count": rot or head,
    }


def states(conv: int, inner: int, state: int, rank: int, groups: int) -> dict[str, Value]:
    return {
        "ssm__conv_kernel": conv,
        "ssm__inner_size": inner,
        "ssm__state_size": state,
        "ssm__time_step_rank": rank,
        "ssm__group_count": groups,
    }


def rotated(*numbers: int) -> dict[str, Value]:
    return {"rope__dimension_sections": array_of(ValueType.I32, numbers)}


# Hyperparameters of published models, from their own configuration files.
PUBLISHED: dict[str, tuple[str, dict[str, Value]]] = {
    "Qwen2.5 0.5B": ("qwen2", attention(24, 896, 14, 2, 64)),
    "Qwen2.5 7B": ("qwen2", attention(28, 3584, 28, 4, 128)),
    "Qwen1.5 MoE A2.7B": ("qwen2moe", attention(24, 2048, 16, 16, 128)),
    "Qwen2-VL 7B": ("qwen2vl", attention(28, 3584, 28, 4, 128) | rotated(16, 24, 24, 0)),
    "Qwen3 0.6B": ("qwen3", attention(28, 1024, 16, 8, 128)),
    "Qwen3 8B": ("qwen3", attention(36, 4096, 32, 8, 128)),
    "Qwen3-VL 8B": ("qwen3vl", attention(36, 4096, 32, 8, 128) | rotated(24, 20, 20, 0)),
    "Llama 4 Maverick": ("llama4", attention(48, 5120, 40, 8, 128)),
    "Gemma 2 9B": ("gemma2", attention(42, 3584, 16, 8, 256) | {"attention__sliding_window": 4096}),
    "Gemma 3 1B": ("gemma3", attention(26, 1152, 4, 1, 256) | {"attention__sliding_window": 512}),
    "Gemma 3n E2B": ("gemma3n", attention(30, 2048, 8, 2, 256) | {"attention__sliding_window": 512}),
    "Gemma 3n E4B": ("gemma3n", attention(35, 2048, 8, 2, 256) | {"attention__sliding_window": 512}),
    "Phi-2": ("phi2", attention(32, 2560, 32, 32, 80, 32)),
    "Phi-3 mini": ("phi3", attention(32, 3072, 32, 32, 96) | {"attention__sliding_window": 2047}),
    "Phi-4": ("phi3", attention(40, 5120, 40, 10, 128)),
    "gpt-oss 20B": ("gpt-oss", attention(24, 2880, 64, 8, 64) | {"attention__sliding_window": 128}),
    "Command R": ("command-r", attention(40, 8192, 64, 64, 128)),
    "Command R7B": ("cohere2", attention(32, 4096, 32, 8, 128) | {"attention__sliding_window": 4096}),
    "GLM-4 9B 0414": ("glm4", attention(40, 4096, 32, 2, 128, 64)),
    "GLM-4.5 Air": ("glm4moe", attention(47, 4096, 96, 8, 128, 64) | {"expert_count": 128}),
    "OLMo 2 7B": ("olmo2", attention(32, 4096, 32, 32, 128)),
    "OLMoE 1B-7B": ("olmoe", attention(16, 2048, 16, 16, 128)),
    "SmolLM3 3B": ("smollm3", attention(36, 2048, 16, 4, 128)),
    "Seed-OSS 36B": ("seed_oss", attention(64, 5120, 80, 8, 128)),
    "Granite 3 8B": ("granite", attention(40, 4096, 32, 8, 128)),
    "EXAONE 4 32B": ("exaone4", attention(64, 5120, 40, 8, 128) | {"attention__sliding_window": 4096}),
    "InternLM 2 7B": ("internlm2", attention(32, 4096, 32, 8, 128)),
    "MiniCPM 2B": ("minicpm", attention(40, 2304, 36, 36, 64)),
    "StableLM 3B": ("stablelm", attention(32, 2560, 32, 32, 80, 20)),
    "StarCoder2 7B": ("starcoder2", attention(32, 4608, 36, 4, 128)),
    "Falcon 7B": ("falcon", attention(32, 4544, 71, 1, 64)),
    "Pythia 1B": ("gptneox", attention(16, 2048, 8, 8, 256, 64)),
    "GPT-2": ("gpt2", attention(12, 768, 12, 12, 64)),
    "BLOOM 7B1": ("bloom", attention(30, 4096, 32, 32, 128)),
    "MPT 7B": ("mpt", attention(32, 4096, 32, 32, 128)),
    "DBRX": ("dbrx", attention(40, 6144, 48, 8, 128)),
    "Grok-1": ("grok", attention(64, 6144, 48, 8, 128)),
    "DeepSeek MoE 16B": ("deepseek", attention(28, 2048, 16, 16, 128)),
    "DeepSeek V2 Lite": (
        "deepseek2",
        attention(27, 2048, 16, 1, 576, 64)
        | {
            "attention__value_length": 512,
            "attention__key_length_mla": 192,
            "attention__value_length_mla": 128,
            "attention__kv_lora_rank": 512,
            "expert_count": 64,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "expert_gating_func": 1,
        },
    ),
    "DeepSeek V2 Lite, without the latent keys": ("deepseek2", attention(27, 2048, 16, 16, 192, 64)),
    "DeepSeek V3": (
        "deepseek2",
        attention(61, 7168, 128, 1, 576, 64)
        | {
            "attention__value_length": 512,
            "attention__key_length_mla": 192,
            "attention__value_length_mla": 128,
            "attention__kv_lora_rank": 512,
            "expert_count": 256,
            "expert_group_count": 8,
            "expert_group_used_count": 4,
            "expert_gating_func": 2,
        },
    ),
    "Mamba 130M": ("mamba", {"embedding_length": 768} | states(4, 1536, 16, 48, 0)),
    "Codestral Mamba 7B": ("mamba2", {"embedding_length": 4096} | states(4, 8192, 128, 128, 8)),
    "Falcon-H1 0.5B": ("falcon-h1", attention(36, 1024, 8, 2, 64) | states(4, 1536, 128, 24, 1)),
    "Granite 4 H Tiny": (
        "granitehybrid",
        attention(40, 1536, 12, 4, 128)
        | states(4, 3072, 128, 48, 1)
        | {"attention__head_count_kv": heads_kv(40, 4, 5, 15, 25, 35)},
    ),
    "LFM2 1.2B": (
        "lfm2",
        attention(16, 2048, 32, 8, 64)
        | {"shortconv__l_cache": 3, "attention__head_count_kv": heads_kv(16, 8, 2, 5, 8, 10, 12, 14)},
    ),
    "Jamba 0.1": (
        "jamba",
        attention(32, 4096, 32, 8, 128)
        | states(4, 8192, 16, 256, 0)
        | {"attention__head_count_kv": heads_kv(32, 8, 4, 12, 20, 28)},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_no_contradiction(name: str) -> None:
    arch, keys = PUBLISHED[name]
    assert keys_only(arch, **keys) is None


@pytest.mark.parametrize(
    ("arch", "broken", "sound"),
    [
        ("jamba", {"ssm__inner_size": 256}, {"ssm__inner_size": 512}),
        ("plamo2", states(4, 256, 16, 3, 0), states(4, 256, 16, 4, 0)),
        ("plamo2", states(4, 256, 16, 4, 1), states(4, 256, 16, 4, 0)),
        ("nemotron_h", states(4, 256, 16, 6, 4), states(4, 256, 16, 8, 4)),
        ("bailingmoe", {"rope__dimension_count": 32}, {"rope__dimension_count": 64}),
        ("bailingmoe2", {}, {"expert_count": 8}),
        ("grovemoe", {}, {"expert_count": 8}),
        ("lfm2moe", {"leading_dense_block_count": 2}, {"expert_count": 8}),
        ("lfm2moe", {}, {"leading_dense_block_count": 8}),
        ("ernie4_5-moe", {"interleave_moe_layer_step": 0}, {"interleave_moe_layer_step": 1}),
        ("glm4", rotated(16, 24, 26, 0), rotated(16, 24, 24, 0)),
        ("hunyuan_vl", rotated(64, 64, 0, 0), rotated(0, 64, 64, 0)),
        ("mistral4", {"rope__dimension_count": 64}, {"rope__dimension_count": 32}),
        ("laguna", {"block_count": 1, "attention__sliding_window": 64}, {"attention__sliding_window": 64}),
    ],
)
def test_rules_of_architectures_the_tests_cannot_build(
    arch: str, broken: dict[str, Value], sound: dict[str, Value]
) -> None:
    both_kinds: dict[str, Value] = {}
    if arch in ("jamba", "nemotron_h", "lfm2moe"):
        both_kinds = {"attention__head_count_kv": heads_kv(8, 4, 1, 3)}
    assert keys_only(arch, **both_kinds, **broken) is not None
    assert keys_only(arch, **both_kinds, **sound) is None
