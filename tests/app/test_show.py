"""What is said about a model file: facts of real models, odd layers, templates, parts, damage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llmrun.app.library.asking import answer
from llmrun.app.library.show import show_model
from llmrun.documents.models import show_document
from llmrun.documents.requests import dump
from llmrun.errors import NotAModel
from llmrun.gguf.hparams import memory_facts
from llmrun.gguf.reader import read_header
from llmrun.memory.cache import cache_sizes
from llmrun.memory.plan import MemoryPlan
from llmrun.reports.model import ArraySummary, ModelReport

from tests.support import bad
from tests.support.archs import ARCHS, write_arch
from tests.support.gguf_writer import Tensor, TensorType, Typed, Value, ValueType, array_of, write_gguf
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet


def described(ref: str, *, check_template: bool = True) -> ModelReport:
    return answer(show_model(ref, check_template=check_template))


def write_model(
    path: Path, keys: Mapping[str, Value], arch: str = "llama", tensors: list[Tensor] | None = None
) -> Path:
    """A sound header of 4 layers with `keys` (of the architecture) changed, and a hole for the weights."""
    values: dict[str, Value] = {
        "block_count": 4,
        "context_length": 64,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **keys,
    }
    all_keys = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in values.items()}}
    return write_gguf(path, all_keys.items(), tensors or [Tensor("token_embd.weight", (64, 32))])


def shown(path: Path, keys: Mapping[str, Value], arch: str = "llama") -> ModelReport:
    report = described(str(write_model(path / "m.gguf", keys, arch)))
    assert report.problem == ""
    return report


def test_smollm2_by_its_catalogue_name() -> None:
    report = described("smollm2-135m")
    model, attention = report.model, report.attention
    assert (model.ref, model.path) == ("smollm2-135m", str(smollm2_path()))
    assert (model.arch, model.quant, model.size_bytes) == ("llama", "Q4_1", 98_362_432)
    assert (report.n_params, report.n_layer, report.n_embd) == (134_515_008, 30, 576)
    assert (attention.n_head, attention.n_head_kv, attention.head_size_k) == ((9,) * 30, (3,) * 30, 64)
    # 30 layers x 3 heads x 64 x 2 (K and V) x 2 bytes; the engine reserves 180 MiB for 8,192 positions
    assert attention.kv_bytes_per_token == 23_040 == 180 * 2**20 // 8192
    uses = {use.type: (use.count, use.size_bytes) for use in report.tensor_types}
    assert uses == {"Q4_1": (210, 66_355_200), "Q8_0": (1, 30_081_024), "F32": (61, 140_544)}
    assert report.tensor_bytes == 96_576_768
    assert report.bits_per_weight == pytest.approx(5.7437, abs=1e-4)
    assert (report.template.status, report.licence) == ("valid", "apache-2.0")
    assert report.languages == ArraySummary("string", 1, ("en",))
    assert report.metadata["tokenizer.ggml.tokens"] == ArraySummary(
        "string",
        49_152,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>",
         "<filename>", "<gh_stars>"),
    )  # fmt: skip
    assert report.warnings == ()


def test_gemma() -> None:
    report = described(str(gemma_path()))
    window = report.attention.window
    assert window is not None
    assert (window.n_swa, [il for il, small in enumerate(window.layers) if not small]) == (512, [5, 11, 17])
    assert report.attention.kv_bytes_per_token == 3 * 256 * 2 * 2  # layers that see all, one KV head of 256
    assert report.attention.kv_note == "15 window layers add 15.0 KiB a token up to 512 tokens"
    assert (report.template.status, report.vocabulary.n_vocab) == ("none", 262_144)
    assert [use.type for use in report.tensor_types] == ["Q8_0", "Q5_0", "Q4_K", "Q6_K", "F32"]
    assert (report.declared_quant, report.quant_agrees, report.warnings) == ("Q4_K_M", True, ())


def test_kv_bytes_add_up_over_layers_with_their_own_heads(tmp_path: Path) -> None:
    heads = array_of(ValueType.U32, [0, 1, 2, 4])
    keys: dict[str, Value] = {
        "attention.head_count_kv": heads,
        "attention.key_length": 32,
        "attention.value_length": 32,
    }
    assert shown(tmp_path, keys).attention.kv_bytes_per_token == (0 + 1 + 2 + 4) * (32 + 32) * 2


@pytest.mark.parametrize("arch", ARCHS)
def test_the_cache_grows_by_what_is_said(tmp_path: Path, arch: str) -> None:
    """From one long context to one of 256 cells more."""
    path = write_arch(tmp_path / "m.gguf", arch, vocabulary=True)
    attention = described(str(path)).attention
    facts = memory_facts(read_header(path))
    short, long = (
        sum(size.size_bytes for size in cache_sizes(facts, MemoryPlan(n_ctx=n_ctx)))
        for n_ctx in (16384, 16640)
    )
    assert attention.kv_bytes_per_token == (long - short) / 256
    assert ("window" in attention.kv_note) == any(la.windowed and la.k_width for la in facts.layers)
    assert ("recurrent" in attention.kv_note) == any(la.state for la in facts.layers)


@pytest.mark.parametrize(
    ("arch", "keys", "why"),
    [
        ("bert", {}, "no usable"),
        ("deepseek4", {}, "a kind of its own"),
        ("llama", {"attention.causal": False}, "does not generate"),
    ],
)
def test_no_figure_where_there_is_none(tmp_path: Path, arch: str, keys: dict[str, Value], why: str) -> None:
    attention = described(str(write_model(tmp_path / "m.gguf", keys, arch))).attention
    assert attention.kv_bytes_per_token is None
    assert why in attention.kv_note


def test_experts(tmp_path: Path) -> None:
    used = array_of(ValueType.U32, [2, 2, 4, 4])
    keys: dict[str, Value] = {"expert_count": 16, "expert_used_count": used, "expert_shared_count": 1}
    experts = shown(tmp_path, keys).experts
    assert experts is not None
    assert (experts.count, experts.used, experts.shared) == (16, (2, 2, 4, 4), 1)
    assert shown(tmp_path, {"expert_count": 0}).experts is None


def test_an_unknown_architecture_is_described(tmp_path: Path) -> None:
    report = described(str(write_model(tmp_path / "m.gguf", {}, "zebra9")))
    assert report.warnings == ("the engine does not know the architecture zebra9: it cannot load this",)
    assert report.attention.kv_bytes_per_token == 4 * 2 * (16 + 16) * 2
    assert (report.model.arch, report.n_layer, report.attention.n_head) == ("zebra9", 4, (4,) * 4)


def test_a_label_that_disagrees_with_the_tensors(tmp_path: Path) -> None:
    tensors = [Tensor("blk.0.ffn_up.weight", (256, 512), None, TensorType.Q4_K)]
    keys: dict[str, Value] = {"general.architecture": "llama", "general.file_type": 7}
    report = described(str(write_gguf(tmp_path / "m.gguf", keys.items(), tensors)))
    assert (report.model.quant, report.declared_quant, report.quant_agrees) == ("Q4_K", "Q8_0", False)


@pytest.mark.parametrize(
    ("template", "status", "reason"),
    [
        ("{{ messages[0].content }}", "valid", ""),
        ("{{ raise_exception('only after a system message') }}", "valid", ""),
        ("line one\n{{ messages[0].content", "invalid", "line 2"),
        ("{{ messages | no_such_filter }}", "invalid", "no_such_filter"),
        ("a\n{{ cycler.__init__.__globals__.os.mkdir('CANARY') }}", "unsafe", "line 2"),
        ("{{ lipsum.__globals__['os'].mkdir('CANARY') }}", "unsafe", "line 1"),
        ("{{ messages[7].content.upper() }}", "fails", "line 1"),
    ],
)
def test_templates_are_judged(tmp_path: Path, template: str, status: str, reason: str) -> None:
    canary = tmp_path / "canary"
    path = write_puppet(tmp_path / "p.gguf", ["a"], template=template.replace("CANARY", str(canary))).path
    report = described(str(path))
    assert (report.template.status, report.problem) == (status, "")
    assert reason in report.template.reason
    assert not canary.exists()
    untried = described(str(path), check_template=False).template
    assert (untried.status, untried.text) == ("unchecked", report.template.text)


def test_a_template_too_long_to_be_one_is_not_tried(tmp_path: Path) -> None:
    path = write_puppet(tmp_path / "p.gguf", ["a"], template="x" * (1 << 20) + "{{").path
    template = described(str(path)).template
    assert template.status == "unchecked"
    assert "1,048,578" in template.reason


@pytest.mark.parametrize("missing_bytes", [1, 500, 4000])
def test_a_file_cut_in_its_tensors_is_described_with_a_warning(tmp_path: Path, missing_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(bad.SOUND[:-missing_bytes])
    report = described(str(path))
    assert (report.model.arch, report.n_layer) == ("llama", 1)
    has, needs = f"{len(bad.SOUND) - missing_bytes:,}", f"{len(bad.SOUND):,}"
    assert report.warnings == (f"file is incomplete: has {has} bytes, needs {needs}",)


def test_cut_copies_of_a_real_model(tmp_path: Path) -> None:
    in_header, in_data = bad.cut_files(smollm2_path(), tmp_path)
    report, whole = described(str(in_data)), described(str(smollm2_path()))
    assert (report.n_params, report.tensor_types) == (whole.n_params, whole.tensor_types)
    assert report.model.size_bytes == 4_000_000
    assert report.warnings == ("file is incomplete: has 4,000,000 bytes, needs 98,362,432",)
    with pytest.raises(NotAModel, match="1,000,000"):
        described(str(in_header))


def test_a_bare_header_of_a_large_model(tmp_path: Path) -> None:
    """Only the header is there: what a reader of remote files has at hand."""
    tensors = [Tensor("token_embd.weight", (8192, 131072), None, TensorType.Q4_0)]
    path = write_model(tmp_path / "m.gguf", {"embedding_length": 8192}, tensors=tensors)
    with path.open("r+b") as file:
        file.truncate(2048)
    report = described(str(path))
    assert report.n_params == 2**30
    assert not report.parts[0].complete
    assert report.bits_per_weight == 4.5


def test_parts_of_a_split_model_are_one_model(tmp_path: Path) -> None:
    for no in range(3):
        keys: dict[str, Value] = {
            "split.no": Typed(ValueType.U16, no),
            "split.count": Typed(ValueType.U16, 3),
            "general.architecture": "llama",
        }
        tensors = [Tensor(f"blk.{no}.ffn_up.weight", (32, 32 * no))] if no else []
        write_gguf(tmp_path / f"m-{no + 1:05d}-of-00003.gguf", keys.items(), tensors)
    report = described(str(tmp_path / "m-00002-of-00003.gguf"))
    assert [Path(part.path).name for part in report.parts] == [
        "m-00001-of-00003.gguf",
        "m-00002-of-00003.gguf",
        "m-00003-of-00003.gguf",
    ]
    assert report.model.size_bytes == sum(Path(part.path).stat().st_size for part in report.parts)
    assert (report.n_params, len(report.tensors), report.part) == (32 * 32 * 3, 2, None)
    alone = tmp_path / "renamed.gguf"
    (tmp_path / "m-00002-of-00003.gguf").rename(alone)
    assert described(str(alone)).part == (2, 3)


@pytest.mark.parametrize("name", bad.OTHER_KINDS)
def test_other_kinds_of_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(bad.OTHER_KINDS[name])
    report = described(str(path))
    assert report.warnings == (report.problem,)
    assert "model" in report.problem or "vocabulary" in report.problem
    assert report.n_layer == 1
    assert report.attention.kv_bytes_per_token is None
    assert report.kind != "model" or "vocabulary" in report.problem


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    extra: dict[str, Value] = {
        "general.sampling.temp": nan,
        "general.sampling.top_k": 20,
        "x.list": [1.0, inf],
        "x.one": -inf,
    }
    path = write_puppet(tmp_path / "p.gguf", ["a"], extra=extra.items()).path
    document = show_document(described(str(path)), metadata=True)
    assert dump(document)
    assert document["sampling"] == {"file": {"temp": None, "top_k": 20}, "catalogue": {}}
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["x.one"] is None
    assert metadata["x.list"] == {"type": "f32", "length": 2, "first": [1.0, None]}
