"""Facts of memory from headers: which layers keep what, for the rules that files do not spell out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.gguf.hparams import MemoryFacts, memory_facts
from llmrun.gguf.reader import parse_header

from tests.support.gguf_writer import Tensor, Value, ValueType, array_of, header_bytes


def facts_of(arch: str, *tensors: Tensor, **keys: Value) -> MemoryFacts:
    named = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    head = header_bytes([("general.architecture", arch), *named.items()], tensors)
    return memory_facts(parse_header(head))


HEADS: dict[str, Value] = {
    "block_count": 8,
    "embedding_length": 256,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
}
SSM: dict[str, Value] = {
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 512,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
}


def test_head_sizes_default_to_an_even_share() -> None:
    facts = facts_of("llama", **HEADS)
    assert {(layer.k_width, layer.v_width) for layer in facts.layers} == {(128, 128)}
    assert (facts.n_slots, facts.n_swa, facts.v_padded) == (9, 0, 128)


def test_window_layers_have_sizes_of_their_own() -> None:
    keys: dict[str, Value] = {
        "attention__key_length": 64,
        "attention__value_length": 32,
        "attention__key_length_swa": 16,
        "attention__value_length_swa": 8,
        "attention__sliding_window": 100,
        "attention__sliding_window_pattern": array_of(ValueType.BOOL, [True, False] * 4),
    }
    facts = facts_of("gemma4", **HEADS | keys)
    widths = [(layer.windowed, layer.k_width, layer.v_width) for layer in facts.layers[:2]]
    assert widths == [(True, 32, 16), (False, 128, 64)]
    assert (facts.n_swa, facts.v_padded) == (100, 64)


@pytest.mark.parametrize(
    ("arch", "keys", "attending", "states"),
    [
        ("llama", {}, [0, 1, 2, 3, 4, 5, 6, 7], []),
        ("mamba2", {"attention__head_count": 0, "attention__head_count_kv": 0}, [], [0, 1, 2, 3, 4, 5, 6, 7]),
        ("falcon-h1", {}, [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]),
        ("qwen3next", {}, [3, 7], [0, 1, 2, 4, 5, 6]),
        ("qwen35", {"full_attention_interval": 2}, [1, 3, 5, 7], [0, 2, 4, 6]),
        (
            "jamba",
            {"attention__head_count_kv": array_of(ValueType.U32, [0, 0, 0, 2, 0, 0, 0, 2])},
            [3, 7],
            [0, 1, 2, 4, 5, 6],
        ),
        (
            "nemotron_h",
            {
                "attention__head_count_kv": array_of(ValueType.U32, [0, 2, 0, 0, 0, 2, 0, 0]),
                "feed_forward_length": array_of(ValueType.U32, [0, 0, 64, 0, 64, 0, 64, 0]),
            },
            [1, 5],
            [0, 3, 7],
        ),
        ("gemma4", {"attention__shared_kv_layers": 3}, [0, 1, 2, 3, 4], []),
        ("glm4moe", {"nextn_predict_layers": 1}, [0, 1, 2, 3, 4, 5, 6], []),
        (
            "deci",
            {"attention__head_count_kv": array_of(ValueType.U32, [2, 0, 2, 0, 0, 0, 0, 2])},
            [0, 2, 7],
            [],
        ),
    ],
)
def test_which_layers_keep_what(
    arch: str, keys: dict[str, Value], attending: list[int], states: list[int]
) -> None:
    facts = facts_of(arch, **HEADS | SSM | keys)
    assert [il for il, layer in enumerate(facts.layers) if layer.k_width] == attending
    assert [il for il, layer in enumerate(facts.layers) if layer.state] == states


@pytest.mark.parametrize(
    ("arch", "keys", "numbers"),
    [
        ("mamba", {}, 3 * 512 + 16 * 512),
        ("mamba2", {}, 3 * (512 + 2 * 2 * 16) + 16 * 512),
        ("rwkv6", {"wkv__head_size": 64}, 2 * 256 + 64 * 256),
        ("rwkv7", {"wkv__head_size": 32, "token_shift_count": 1}, 256 + 32 * 256),
        ("lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": 0, "ssm__state_size": 0}, 2 * 256),
        (
            "kimi-linear",
            {"kda__head_dim": 32, "attention__head_count_kv": 0},
            3 * 3 * 4 * 32 + 32 * 32 * 4,
        ),
    ],
)
def test_sizes_of_states(arch: str, keys: dict[str, Value], numbers: int) -> None:
    assert facts_of(arch, **HEADS | SSM | keys).layers[0].state == numbers


def test_latent_attention_keeps_one_row() -> None:
    keys: dict[str, Value] = {
        "attention__head_count_kv": 1,
        "attention__key_length": 576,
        "attention__value_length": 512,
        "attention__key_length_mla": 192,
        "attention__value_length_mla": 128,
    }
    facts = facts_of("deepseek2", **HEADS | keys)
    assert facts.mla
    assert {(layer.k_width, layer.v_width, layer.index_k) for layer in facts.layers} == {(576, 0, 0)}
    sparse = facts_of("deepseek32", **HEADS | keys | {"attention__indexer__key_length": 128})
    assert {(layer.k_width, layer.index_k, layer.index_v) for layer in sparse.layers} == {(576, 128, 0)}
    dense_first: dict[str, Value] = {"leading_dense_block_count": 2, "attention__indexer__key_length": 128}
    m3 = facts_of("minimax-m3", **HEADS | dense_first)
    assert [layer.index_k for layer in m3.layers] == [0, 0, *[128] * 6]
    assert [layer.index_v for layer in m3.layers] == [0, 0, *[64] * 6]


def test_layers_that_run_several_times() -> None:
    assert len(facts_of("nanbeige", **HEADS | {"num_loops": 3}).layers) == 24
    routed = facts_of("graniteswitch", **HEADS)
    assert [layer.k_width for layer in routed.layers] == [*[128] * 8, 64]


def test_what_the_formulas_leave_out_is_named() -> None:
    assert "deepseek4" in facts_of("deepseek4", **HEADS).unmodelled
    assert facts_of("llama", **HEADS).unmodelled == ""


def test_places_of_weights() -> None:
    names = {
        "token_embd.weight": -1,
        "per_layer_token_embd.weight": -1,
        "token_embd_norm.weight": 0,
        "blk.0.attn_q.weight": 0,
        "blk.7.ffn_up_exps.weight": 7,
        "rope_freqs.weight": 0,
        "output_norm.weight": 8,
        "output.weight": 8,
    }
    facts = facts_of("llama", *(Tensor(name, (32, 4), None) for name in names), **HEADS)
    assert {w.name: w.slot for w in facts.weights} == names
    assert [w.name for w in facts.weights if w.spread] == ["rope_freqs.weight"]
    assert [w.name for w in facts.weights if w.expert] == ["blk.7.ffn_up_exps.weight"]
    assert not facts.tied
    lfm2 = facts_of("lfm2", Tensor("token_embd_norm.weight", (32,), None), **HEADS)
    assert lfm2.weights[0].slot == 8


VALUES = st.one_of(
    st.integers(-5, 1 << 33), st.floats(width=32), st.booleans(), st.text(max_size=5), st.just([1, 2])
)
SUFFIXES = ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
            "attention.key_length", "attention.sliding_window", "nextn_predict_layers", "ssm.inner_size",
            "ssm.conv_kernel", "shortconv.l_cache", "full_attention_interval", "num_loops", "expert_count",
            "attention.shared_kv_layers", "attention.indexer.key_length", "context_length")  # fmt: skip


@given(
    st.sampled_from(
        ("llama", "gemma4", "mamba", "qwen35", "lfm2", "nanbeige", "graniteswitch", "kimi-linear")
    ),
    st.dictionaries(st.sampled_from(SUFFIXES), VALUES),
)
def test_any_header_has_facts(arch: str, keys: dict[str, Value]) -> None:
    pairs = [("general.architecture", arch), *((f"{arch}.{key}", value) for key, value in keys.items())]
    facts = memory_facts(parse_header(header_bytes(pairs)))
    assert all(layer.k_width >= 0 and layer.state >= 0 for layer in facts.layers)
