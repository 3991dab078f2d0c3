"""Which files of a repository are models, what quantization each is, and which one a tag means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import ModelNotFound, UsageError
from llmrun.store.repo_files import RepoFile
from llmrun.store.variants import Variant, choose, choose_local, helper_kind, split_name, variants


def of(*paths: str) -> tuple[Variant[RepoFile], ...]:
    return variants([RepoFile(path, 10 + no) for no, path in enumerate(paths)])


def labels(*paths: str) -> list[str]:
    return [variant.quant for variant in of(*paths)]


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m-q4_k_m.GGUF", "q4_k_m"),
        ("m.Q8_0.gguf", "Q8_0"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-I-Q4_K_M.gguf", "I-Q4_K_M"),
        ("m-UD-IQ4_NL_XL.gguf", "UD-IQ4_NL_XL"),
        ("m-Q4_K-XL.gguf", "Q4_K-XL"),
        ("m.i1-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-Q6_K_L.gguf", "Q6_K_L"),
        ("m-UD-TQ1_0.gguf", "UD-TQ1_0"),
        ("m-mxfp4.gguf", "mxfp4"),
        ("m-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("m_bf16.gguf", "bf16"),
        ("m-F16-made-into-Q5_K_S.gguf", "Q5_K_S"),
        ("Qwen3-30B-A3B-Q4_K_M-00001-of-00001.gguf", "Q4_K_M"),
        ("Q4_K_M/m-Q4_K_M.gguf", "Q4_K_M"),
        ("UD-Q4_K_XL/m.gguf", "UD-Q4_K_XL"),
        ("F16/m-Q4_0.gguf", "Q4_0"),
        ("m.gguf", ""),
        ("Qwen3-4B-Instruct-2507.gguf", ""),
    ],
)
def test_the_quantization_is_read_from_the_name(path: str, quant: str) -> None:
    assert labels(path) == [quant]


def test_names_without_a_quantization_are_told_apart_by_their_ends() -> None:
    assert labels("m-I-Compact.gguf", "m-Compact.gguf", "m-Q4_K_M.gguf") == ["I-Compact", "Compact", "Q4_K_M"]


def test_what_follows_tells_two_of_one_quantization_apart() -> None:
    assert labels("m-Q4_K_M.gguf", "m-Q4_K_M-fast.gguf") == ["Q4_K_M", "Q4_K_M-fast"]
    assert choose(of("m-Q4_K_M-fast.gguf", "m-Q4_K_M.gguf"), "q4_k_m", "u/r").name == "m-Q4_K_M"


HELPERS = [
    "mmproj-F16.gguf",
    "sub/mmproj-model-f16.gguf",
    "m-BF16-mmproj.gguf",
    "m.mmproj-Q8_0.gguf",
    "imatrix.gguf",
    "imatrix_unsloth.gguf",
    "m-imatrix.gguf",
    "mtp-draft-Q8_0.gguf",
    "MTP/m-Q8_0.gguf",
    "m-Q4_K_M-mtp.gguf",
    "m-Q4_K_M-mtp-00001-of-00002.gguf",
    "eagle3-m-Q8_0.gguf",
    "dflash-m.gguf",
    "M-Q8_0-DSPARK.gguf",
]


@pytest.mark.parametrize("path", HELPERS)
def test_helpers_are_never_models(path: str) -> None:
    assert helper_kind(path)
    assert of(path) == ()


@pytest.mark.parametrize("path", ["m-mtpx-Q4_0.gguf", "imatrixed/m-Q4_0.gguf", "m-MTP-Q4_0.gguf"])
def test_models_are_not_taken_for_helpers(path: str) -> None:
    assert helper_kind(path) is None
    assert len(of(path)) == 1


def test_other_files_are_no_models() -> None:
    assert of("README.md", "m-Q4_0.gguf.sha256", "config.json", "Q4_0/gguf") == ()


def test_a_split_set_is_one_model_with_its_parts_in_order() -> None:
    paths = [f"Q4_K_M/m-Q4_K_M-{no:05d}-of-00003.gguf" for no in (3, 1, 2)]
    (model, other) = of(*paths, "m-Q8_0.gguf")
    assert [file.path for file in model.files] == sorted(paths)
    assert (model.quant, model.n_parts, model.complete, model.missing) == ("Q4_K_M", 3, True, ())
    assert (model.size_bytes, model.name) == (10 + 11 + 12, "Q4_K_M/m-Q4_K_M")
    assert (other.quant, other.n_parts) == ("Q8_0", 1)


def test_missing_parts_are_named() -> None:
    (model,) = of("m-Q4_0-00002-of-00003.gguf")
    assert not model.complete
    assert model.missing == ("m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf")


@pytest.mark.parametrize("path", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf"])
def test_a_name_that_only_looks_split_is_one_file(path: str) -> None:
    assert split_name(path) is None
    assert [variant.complete for variant in of(path)] == [True]


C41 = (
    "m-Q4_K_XL.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-I-Compact.gguf",
    "m-Compact.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K_M-mtp.gguf",
)


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ("Q4_K_XL", "m-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        ("i-compact", "m-I-Compact.gguf"),
        ("COMPACT", "m-Compact.gguf"),
        ("Q4_k_m", "m-Q4_K_M.gguf"),
        ("m-UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("M-q4_k_m", "m-Q4_K_M.gguf"),
    ],
)
def test_a_tag_means_the_whole_quantization(tag: str, path: str) -> None:
    assert choose(of(*C41), tag, "u/r").files[0].path == path


@pytest.mark.parametrize("tag", ["Q4_K", "Q4", "XL", "K_M", "UD-Q4_K_M", ".*", "Q4.K.M", "", "mtp"])
def test_a_part_of_one_means_none_and_the_candidates_are_listed(tag: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        choose(of(*C41), tag, "u/r")
    assert caught.value.hint.endswith("Q4_K_XL, UD-Q4_K_XL, I-Compact, Compact, Q4_K_M")


@pytest.mark.parametrize("tag", ["Q4_K_M", "q4_k_m", "Q4_k_M"])
def test_two_spellings_in_one_repository_are_ambiguous(tag: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(of("m-Q4_K_M.gguf", "m-q4_k_m.gguf"), tag, "u/r")
    assert "m-Q4_K_M, m-q4_k_m" in caught.value.message


def test_the_file_name_settles_what_the_quantization_cannot() -> None:
    doubled = of("a/m-Q4_0.gguf", "b/m-Q4_0.gguf", "m-q8_0.gguf", "m-Q8_0.gguf")
    with pytest.raises(UsageError, match="a/m-Q4_0, b/m-Q4_0"):
        choose(doubled, "Q4_0", "u/r")
    assert choose(doubled, "b/m-Q4_0", "u/r").name == "b/m-Q4_0"
    assert choose(doubled, "m-Q8_0", "u/r").name == "m-Q8_0"


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        (["m-F16.gguf"], "F16"),
        (["m-F16.gguf", "m-Q8_0.gguf", "m-q4_k_m.gguf"], "q4_k_m"),
        (["m-F16.gguf", "m-UD-Q4_K_M.gguf", "m-Q8_0.gguf"], "Q8_0"),
        (["m-F16.gguf", "m-IQ2_M.gguf"], "F16"),
        (["m-Q4_K_M-00001-of-00002.gguf", "m-F16.gguf"], "F16"),
        (["m-Q4_K_M-00001-of-00002.gguf"], "Q4_K_M"),
    ],
)
def test_without_a_tag_the_documented_order_decides(paths: list[str], taken: str) -> None:
    assert choose_local(of(*paths)).quant == taken


def test_an_empty_repository_says_so() -> None:
    with pytest.raises(ModelNotFound, match="no GGUF model"):
        choose(of("mmproj-F16.gguf"), "Q4_0", "u/r")


def test_messages_carry_no_control_characters() -> None:
    with pytest.raises(ModelNotFound) as caught:
        choose(of("a\x1b[31m.gguf", "b-Q4_0.gguf"), "Q8_0\x07", "u/r")
    assert (caught.value.message + caught.value.hint).isprintable()


QUANTS = st.sampled_from(
    ["Q4_K_M", "q4_k_m", "Q4_K", "Q4_K_XL", "UD-Q4_K_XL", "I-Q4_K_M", "IQ2_XXS", "MXFP4", "BF16", "Q8_0", ""]
)


@st.composite
def repositories(draw: st.DrawFn) -> list[RepoFile]:
    paths = set()
    for _ in range(draw(st.integers(0, 8))):
        quant, folder = draw(QUANTS), draw(QUANTS)
        stem = "-".join(filter(None, (draw(st.sampled_from(["m", "Mod el", "x.y", "ü-日"])), quant)))
        stem = f"{folder}/{stem}" if folder and draw(st.booleans()) else stem
        count = draw(st.integers(1, 3))
        numbers = draw(st.sets(st.integers(1, count), min_size=1))
        paths |= {f"{stem}-{no:05d}-of-{count:05d}.gguf" for no in numbers} if count > 1 else {f"{stem}.gguf"}
    paths |= draw(st.sets(st.sampled_from([*HELPERS, "README.md"])))
    return [RepoFile(path, draw(st.integers(0, 1 << 40))) for path in draw(st.permutations(sorted(paths)))]


@given(repositories())
def test_every_main_file_belongs_to_exactly_one_model(files: list[RepoFile]) -> None:
    found = variants(files)
    taken = [file.path for variant in found for file in variant.files]
    main = [f.path for f in files if f.path.endswith(".gguf") and helper_kind(f.path) is None]
    assert sorted(taken) == sorted(main)
    assert sum(v.size_bytes for v in found) == sum(f.size_bytes for f in files if f.path in main)
    for variant in found:
        numbers = [part.no for file in variant.files if (part := split_name(file.path))]
        assert numbers == sorted(numbers)
        assert variant.complete == (not variant.missing)
        assert len(variant.files) + len(variant.missing) == variant.n_parts


def outcome(found: tuple[Variant[RepoFile], ...], tag: str) -> object:
    try:
        return choose(found, tag, "u/r")
    except (ModelNotFound, UsageError) as error:
        return type(error)


@given(repositories(), QUANTS)
def test_a_tag_in_any_case_means_the_same_and_never_another_quantization(
    files: list[RepoFile], tag: str
) -> None:
    found = variants(files)
    chosen = outcome(found, tag)
    assert outcome(found, tag.swapcase()) == chosen
    if isinstance(chosen, Variant):
        assert chosen.quant.lower() == tag.lower() or chosen.name.rpartition("/")[2].lower() == tag.lower()
