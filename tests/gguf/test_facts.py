"""What is said about a model: quantization label, layers, templates, sampling."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.gguf.facts import ModelFacts, SplitInfo, model_facts
from llmrun.gguf.reader import parse_header, read_header

from tests.support.gguf_writer import Tensor, TensorType, Typed, Value, ValueType, array_of, header_bytes
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import TEMPLATE, write_puppet
from tests.support.tiny import WINDOW, write_tiny


def facts_of(keys: dict[str, Value], tensors: list[Tensor] | None = None) -> ModelFacts:
    return model_facts(parse_header(header_bytes(keys.items(), tensors or [])))


def test_smollm2() -> None:
    facts = model_facts(read_header(smollm2_path()))
    assert (facts.arch, facts.quant, facts.size_bytes, facts.licence) == (
        "llama",
        "Q4_1",
        98_362_432,
        "apache-2.0",
    )
    assert (facts.n_layer, facts.n_embd, facts.n_ctx_train, facts.head_size_k) == (30, 576, 8192, 64)
    assert (facts.n_head, facts.n_head_kv) == ((9,) * 30, (3,) * 30)
    assert facts.n_params == 134_515_008
    tokenizer = facts.tokenizer
    assert (tokenizer.bos_text, tokenizer.eos_text, tokenizer.add_bos) == (
        "<|im_start|>",
        "<|im_end|>",
        False,
    )
    assert facts.chat_template is not None
    assert facts.window.n_swa == 0


def test_gemma() -> None:
    facts = model_facts(read_header(gemma_path()))
    assert (facts.arch, facts.quant, facts.chat_template) == ("gemma3", "Q4_K_M", None)
    assert facts.quantization.main_type == "Q5_0"
    assert facts.tokenizer.n_vocab == 262_144
    assert facts.head_size_k == 256
    assert facts.window.n_swa == 512
    assert [il for il, windowed in enumerate(facts.window.layers) if not windowed] == [5, 11, 17]


def test_fixture_models(tmp_path: Path) -> None:
    gemma = model_facts(read_header(write_tiny(tmp_path / "g.gguf", "gemma3")))
    assert (gemma.window.n_swa, gemma.window.layers) == (WINDOW, (True,) * 5 + (False,))
    puppet = model_facts(read_header(write_puppet(tmp_path / "p.gguf", ["a"], n_ctx=77).path))
    assert (puppet.quant, puppet.n_ctx_train, puppet.chat_template) == ("F32", 77, TEMPLATE)
    assert (puppet.tokenizer.bos_text, puppet.tokenizer.add_bos) == ("<s>", True)


@pytest.mark.parametrize(
    ("declared", "tensor_type", "label", "consistent"),
    [
        (15, TensorType.Q4_K, "Q4_K_M", True),
        (14, TensorType.Q5_0, "Q4_K_S", True),
        (7, TensorType.Q4_K, "Q4_K", False),
        (None, TensorType.Q6_K, "Q6_K", True),
        (999, TensorType.Q8_0, "Q8_0", True),
    ],
)
def test_quantization_label_follows_the_tensors(
    declared: int | None, tensor_type: TensorType, label: str, consistent: bool
) -> None:
    keys: dict[str, Value] = {"general.architecture": "llama"}
    if declared is not None:
        keys["general.file_type"] = declared
    tensors = [
        Tensor("token_embd.weight", (256, 4096), None, TensorType.F16),
        Tensor("blk.0.ffn_up.weight", (256, 512), None, tensor_type),
        Tensor("blk.0.ffn_norm.weight", (256,), None),
    ]
    quantization = facts_of(keys, tensors).quantization
    assert quantization.label == label
    assert (quantization.declared in ("", label)) is consistent


@pytest.mark.parametrize(
    ("arch", "keys", "n_swa", "windowed"),
    [
        ("gemma2", {}, 4096, [0, 2, 4, 6]),
        ("gemma3", {}, 0, []),
        (
            "gemma3",
            {"attention.sliding_window": 64, "attention.sliding_window_pattern": 3},
            64,
            [0, 1, 3, 4, 6, 7],
        ),
        ("cohere2moe", {"attention.sliding_window": 64}, 64, [1, 2, 3, 5, 6, 7]),
        ("llama4", {}, 8192, [0, 1, 2, 4, 5, 6]),
        ("llama4", {"attention.sliding_window": 0}, 0, []),
        ("smallthinker", {}, 0, []),
        ("smallthinker", {"attention.sliding_window": 1}, 4096, [1, 2, 3, 5, 6, 7]),
        ("phi3", {"attention.sliding_window": 2048}, 0, []),
        ("exaone4", {"attention.sliding_window": 2048}, 0, []),
        (
            "gemma4",
            {
                "attention.sliding_window": 512,
                "attention.sliding_window_pattern": array_of(ValueType.BOOL, [True, False] * 4),
            },
            512,
            [0, 2, 4, 6],
        ),
    ],
)
def test_sliding_window_patterns(arch: str, keys: dict[str, Value], n_swa: int, windowed: list[int]) -> None:
    all_keys: dict[str, Value] = {"general.architecture": arch, f"{arch}.block_count": 8}
    facts = facts_of(all_keys | {f"{arch}.{k}": v for k, v in keys.items()})
    assert facts.window.n_swa == n_swa
    assert [il for il, flag in enumerate(facts.window.layers) if flag] == windowed


def test_heads_per_layer() -> None:
    facts = facts_of(
        {
            "general.architecture": "x",
            "x.block_count": 3,
            "x.embedding_length": 64,
            "x.attention.head_count": array_of(ValueType.U32, [4, 4, 8]),
            "x.attention.head_count_kv": array_of(ValueType.U32, [0, 2, 4]),
        }
    )
    assert (facts.n_head, facts.n_head_kv, facts.head_size_k) == ((4, 4, 8), (0, 2, 4), 16)


def test_templates_sampling_and_split() -> None:
    facts = facts_of(
        {
            "general.architecture": "x",
            "general.license": "other",
            "general.license.name": "Gemma terms",
            "tokenizer.chat_template": "A",
            "tokenizer.chat_template.tool_use": "B",
            "general.sampling.temp": 0.5,
            "general.sampling.top_k": 20,
            "general.sampling.sequence": "kt",
            "split.count": Typed(ValueType.U16, 3),
            "split.no": Typed(ValueType.U16, 1),
        }
    )
    assert facts.chat_template == "A"
    assert dict(facts.named_templates) == {"tool_use": "B"}
    assert dict(facts.sampling) == {"temp": 0.5, "top_k": 20}
    assert facts.split == SplitInfo(1, 3)
    assert facts.licence == "Gemma terms"


def test_mistyped_keys_are_as_good_as_missing() -> None:
    facts = facts_of(
        {
            "general.architecture": 7,
            "general.name": 1.5,
            "tokenizer.chat_template": ["a"],
            "tokenizer.ggml.tokens": "none",
            "general.file_type": "Q4",
        }
    )
    assert (facts.arch, facts.name, facts.chat_template, facts.tokenizer.n_vocab) == ("", "", None, 0)
