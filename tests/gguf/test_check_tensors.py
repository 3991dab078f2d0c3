"""Tensors of a wrong type or missing ones, on which the engine's process would end."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from llmrun.errors import NotAModel
from llmrun.gguf.check import check_part, check_runnable
from llmrun.gguf.check_tensors import tensor_fault
from llmrun.gguf.reader import read_header

from tests.support.archs import ARCHS, Edit, write_arch, write_split
from tests.support.fates import RAN, fates
from tests.support.gguf_writer import Tensor, TensorType

# An architecture and the end of a tensor's name that its graph computes with in F32 only.
F32_ONLY = [
    ("llama", "output_norm.weight"),
    ("llama", "attn_norm.weight"),
    ("qwen2", "attn_q.bias"),
    ("qwen3", "attn_k_norm.weight"),
    ("gemma2", "post_ffw_norm.weight"),
    ("gemma3n", "altup_correct_scale.weight"),
    ("gemma4", "rope_freqs.weight"),
    ("gpt-oss", "attn_sinks.weight"),
    ("gpt-oss", "ffn_down_exps.bias"),
    ("deepseek2", "exp_probs_b.bias"),
    ("deepseek2", "attn_kv_a_norm.weight"),
    ("mamba", "ssm_conv1d.weight"),
    ("mamba", "ssm_a"),
    ("mamba", "ssm_dt.bias"),
    ("mamba2", "ssm_d"),
    ("mamba2", "ssm_norm.weight"),
    ("falcon-h1", "ffn_norm"),
    ("lfm2", "shortconv.conv.weight"),
    ("lfm2", "token_embd_norm.weight"),
]
# Others, which the engine takes in half precision.
ANY_TYPE = [
    ("llama", "ffn_gate.weight"),
    ("qwen3next", "ffn_gate_inp_shexp.weight"),
    ("glm4moe", "nextn.enorm.weight"),
    ("mamba", "ssm_dt.weight"),
    ("lfm2", "shortconv.in_proj.weight"),
]
# Types that no matrix can have.
NO_MATRIX = [
    TensorType.F64, TensorType.I8, TensorType.I16, TensorType.I32, TensorType.I64, TensorType.Q8_1,
    TensorType.Q8_K,
]  # fmt: skip
MATRICES = ["token_embd.weight", "attn_q.weight", "ffn_down.weight", "output.weight"]
# An architecture and tensors of one layer that the engine loads a model without, but does not run it.
NEEDED = [
    ("falcon-h1", ("ssm_conv1d.bias",)),
    ("granitehybrid", ("ssm_conv1d.bias",)),
    ("qwen35", ("attn_gate.weight",)),
    ("qwen35", ("attn_qkv.weight",)),
    ("qwen3next", ("attn_qkv.weight", "attn_gate.weight")),
    ("phi3", ("attn_qkv.weight",)),
]


def as_type(ending: str, kind: TensorType) -> Edit:
    """Every tensor with that name takes the type."""

    def edit(tensors: list[Tensor]) -> list[Tensor]:
        return [replace(t, type=kind) if re.search(rf"(^|\.){ending}$", t.name) else t for t in tensors]

    return edit


def without(*endings: str) -> Edit:
    """The first layer that has such tensors loses them."""

    def edit(tensors: list[Tensor]) -> list[Tensor]:
        first = {next(t.name for t in tensors if t.name.endswith(f".{ending}")) for ending in endings}
        return [t for t in tensors if t.name not in first]

    return edit


def fault(path: Path) -> str | None:
    return tensor_fault(read_header(path))


@pytest.mark.parametrize("arch", ARCHS)
def test_sound_models_have_no_fault(tmp_path: Path, arch: str) -> None:
    assert fault(write_arch(tmp_path / "m.gguf", arch)) is None


@pytest.mark.parametrize(("arch", "name"), F32_ONLY)
def test_a_wrong_type_is_named(tmp_path: Path, arch: str, name: str) -> None:
    told = fault(write_arch(tmp_path / "m.gguf", arch, edit=as_type(name, TensorType.F16)))
    assert told is not None
    assert name in told
    assert "F16" in told
    assert fault(write_arch(tmp_path / "s.gguf", arch, edit=as_type(name, TensorType.F32))) is None


@pytest.mark.parametrize(("arch", "name"), ANY_TYPE)
def test_other_tensors_may_have_any_type(tmp_path: Path, arch: str, name: str) -> None:
    assert fault(write_arch(tmp_path / "m.gguf", arch, edit=as_type(name, TensorType.F16))) is None


@pytest.mark.parametrize("kind", NO_MATRIX)
@pytest.mark.parametrize("name", MATRICES)
def test_no_matrix_of_such_a_type(tmp_path: Path, name: str, kind: TensorType) -> None:
    path = write_arch(tmp_path / "m.gguf", "llama", n_embd=256, n_ff=256, edit=as_type(name, kind))
    told = fault(path)
    assert told is not None
    assert name in told
    assert kind.name in told


@pytest.mark.parametrize(("arch", "names"), NEEDED)
def test_a_missing_tensor_is_named(tmp_path: Path, arch: str, names: tuple[str, ...]) -> None:
    told = fault(write_arch(tmp_path / "m.gguf", arch, edit=without(*names)))
    assert told is not None
    assert all(name in told for name in names)


def test_the_rest_of_a_split_model_is_elsewhere(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "phi3", 5)
    assert [fault(part) for part in parts] == [None] * 5


def test_every_part_is_checked(tmp_path: Path) -> None:
    first, last = write_split(tmp_path, "llama", 2, edit=as_type("blk.1.ffn_norm.weight", TensorType.F16))
    check_part(read_header(first), no=0, count=2, name="a.gguf")
    with pytest.raises(NotAModel, match=r"b\.gguf .*ffn_norm\.weight is F16"):
        check_part(read_header(last), no=1, count=2, name="b.gguf")


def test_a_refusal_names_file_and_tensor(tmp_path: Path) -> None:
    path = write_arch(
        tmp_path / "m.gguf", "llama", vocabulary=True, edit=as_type("attn_norm.weight", TensorType.Q8_0)
    )
    with pytest.raises(NotAModel, match=r"m\.gguf .*blk\.0\.attn_norm\.weight is Q8_0"):
        check_runnable(read_header(path), name=path.name)


@pytest.mark.slow
def test_the_engine_agrees(tmp_path: Path) -> None:
    """It ends its process on what is refused, and runs what is not."""
    refused = [
        write_arch(tmp_path / f"{i} {kind.name}.gguf", arch, edit=as_type(name, kind))
        for i, (arch, name) in enumerate(F32_ONLY)
        for kind in (TensorType.F16, TensorType.BF16)
    ]
    refused += [
        write_arch(tmp_path / f"needed {i}.gguf", arch, edit=without(*names))
        for i, (arch, names) in enumerate(NEEDED)
    ]
    refused += [
        write_arch(
            tmp_path / f"{name} {kind.name}.gguf", "llama", n_embd=256, n_ff=256, edit=as_type(name, kind)
        )
        for name in MATRICES
        for kind in NO_MATRIX
    ]
    taken = [
        write_arch(tmp_path / f"any {i}.gguf", arch, edit=as_type(name, TensorType.F16))
        for i, (arch, name) in enumerate(ANY_TYPE)
    ]
    assert [p.name for p, fate in zip(refused, fates(refused), strict=True) if fate >= 0] == []
    assert fates(taken) == [RAN] * len(taken)
