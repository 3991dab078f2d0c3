"""Public bug reports on names: of quantizations, helper files, repositories on disk, and odd file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cache import break_off, fill_cache
from tests.support.cli import Cli
from tests.support.gguf_writer import Tensor, write_gguf
from tests.support.hub import REPO
from tests.support.pulling import Online
from tests.support.puppet import write_puppet

GREEDY = ("--temp", "0", "-n", "4", "-c", "128")
ANSWER = "a short answer"


@pytest.fixture
def content(model: Path) -> bytes:
    return model.read_bytes()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "short.gguf", ["a ", "short ", "answer"]).path


@pytest.fixture
def hub(cli: Cli, tmp_path: Path) -> Path:
    """The Hugging Face cache of the program under test; a server that refuses stands for the Hub."""
    cli.env.update(HF_HUB_CACHE=str(tmp_path / "hub ü 模"), HF_ENDPOINT="http://127.0.0.1:9")
    return tmp_path / "hub ü 模"


# ggml-org/llama.cpp#21132, containers/ramalama#1421: the tag in other letter case is not found on disk
@pytest.mark.parametrize("ref", ["user/repo:Q4_K_M", "user/repo:q4_k_m", "User/REPO:Q4_k_M", "user/repo"])
def test_every_spelling_leads_to_what_is_on_disk(cli: Cli, hub: Path, content: bytes, ref: str) -> None:
    fill_cache(hub, "User/Repo", {"m-Q4_K_M.gguf": content, "m-Q8_0.gguf": b"another"})
    shown = cli.here("show", ref, "--json")
    assert (shown.status, shown.err) == (0, "")
    assert shown.document["model"]["path"].endswith("m-Q4_K_M.gguf")


def test_every_spelling_is_one_download(online: Online, content: bytes) -> None:
    online.server.add("m-Q4_K_M.gguf", content)
    user, repo = REPO.split("/")
    spellings = [f"{REPO}:q4_k_m", f"{REPO}:Q4_K_M", f"{user.upper()}/{repo.lower()}:Q4_k_m"]
    assert {online("pull", ref, "-q").status for ref in spellings} == {0}
    assert online.server.sent() == len(content)
    assert [one["repo"] for one in online("list", "--json").document["models"]].count(REPO) == 1
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        for ref in spellings:
            assert online("run", ref, "Hi", *GREEDY, **env).text == ANSWER


def test_two_files_of_one_spelling_are_ambiguous(online: Online, content: bytes) -> None:
    for name in ("a-q4_k_m.gguf", "b-Q4_K_M.gguf"):
        online.server.add(name, content)
    ended = online("pull", f"{REPO}:Q4_K_M")
    assert (ended.status, ended.out, online.server.bodies()) == (2, b"", [])
    assert "a-q4_k_m" in ended.err
    assert "b-Q4_K_M" in ended.err
    assert online("pull", f"{REPO}:b-Q4_K_M").status == 0


# ggml-org/llama.cpp#13128, simonw/llm#188: a model on disk needs the network to start
def test_a_cached_model_runs_without_the_hub(cli: Cli, hub: Path, content: bytes) -> None:
    fill_cache(hub, "user/repo", {"m-Q8_0.gguf": content})
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        ended = cli.here("run", "user/repo:q8_0", "Hi", *GREEDY, env=env)
        assert (ended.status, ended.text, ended.err) == (0, ANSWER, "")


# ggml-org/llama.cpp PR#25152 and #27201, lemonade-sdk/lemonade#615: another variant is taken without notice
@pytest.mark.parametrize("ref", ["user/repo:Q4_K", "user/repo:Q4_K_M", "user/repo:Compact"])
def test_no_variant_stands_in_for_another(cli: Cli, hub: Path, content: bytes, ref: str) -> None:
    names = ("m-Q4_K_XL", "m-UD-Q4_K_M", "m-I-Compact", "m-Q4_K_M-mtp")
    fill_cache(hub, "user/repo", {f"{name}.gguf": content for name in names})
    ended = cli.here("run", ref, "Hi")
    assert (ended.status, ended.out) == (3, b"")
    assert "I-Compact, Q4_K_XL, UD-Q4_K_M" in ended.err
    assert f"llmrun pull {ref}" in ended.err


OTHERS = ("m-Q4_K_XL", "m-UD-Q4_K_XL", "m-I-Compact", "m-Compact", "m-Q4_K_M", "m-Q4_K_M-mtp")


@pytest.mark.parametrize(
    ("tag", "taken"),
    [
        ("Q4_K_XL", "m-Q4_K_XL"),
        ("ud-q4_k_xl", "m-UD-Q4_K_XL"),
        ("I-Compact", "m-I-Compact"),
        ("Compact", "m-Compact"),
        ("Q4_K_M", "m-Q4_K_M"),
    ],
)
def test_an_exact_tag_is_fetched(online: Online, tag: str, taken: str) -> None:
    for name in OTHERS:
        online.server.add(f"{name}.gguf", name.encode())
    for ref in ([f"{REPO}:{tag}"], [REPO, "--quant", tag]):
        ended = online("pull", *ref, "--json")
        assert [file["path"] for file in ended.document["files"]] == [f"{taken}.gguf"]


@pytest.mark.parametrize("tag", ["Q4_K", "K_M", "XL", "Q8_0", "mtp"])
def test_a_part_of_a_tag_fetches_nothing(online: Online, tag: str) -> None:
    for name in OTHERS:
        online.server.add(f"{name}.gguf", name.encode())
    ended = online("pull", f"{REPO}:{tag}")
    assert (ended.status, ended.out, online.server.bodies()) == (3, b"", [])
    for candidate in ("UD-Q4_K_XL", "I-Compact", "Q4_K_M"):
        assert candidate in ended.err


# ggml-org/llama.cpp#24495, AlexsJones/llmfit#291, containers/ramalama#2062: a helper is taken for the model
def test_helpers_are_not_the_model(cli: Cli, hub: Path, content: bytes) -> None:
    helpers = ("mmproj-F16.gguf", "imatrix.gguf", "mtp-draft-Q8_0.gguf")
    main = {"UD-Q4_K_XL/m-UD-Q4_K_XL.gguf": content}
    fill_cache(hub, "user/repo", dict.fromkeys(helpers, b"small") | main)
    ended = cli.here("run", "user/repo", "Hi", *GREEDY, "-v")
    assert (ended.status, ended.text) == (0, ANSWER)
    assert "m-UD-Q4_K_XL.gguf of user/repo" in ended.err


def test_a_helper_is_not_fetched_for_the_model(online: Online, content: bytes) -> None:
    for name in ("mmproj-F16.gguf", "imatrix.gguf", "mtp-draft-Q8_0.gguf"):
        online.server.add(name, b"small")
    path = "UD-Q4_K_XL/m-UD-Q4_K_XL.gguf"
    online.server.add(path, content)
    ended = online("pull", REPO)
    assert ended.status == 0
    assert path in ended.err
    assert [one["quant"] for one in online("list", "--json").document["models"] if one["repo"]] == [
        "UD-Q4_K_XL"
    ]


@pytest.mark.parametrize(("kind", "says"), [("mmproj", "projector"), ("imatrix", "importance matrix")])
def test_running_a_helper_says_what_it_is(cli: Cli, tmp_path: Path, kind: str, says: str) -> None:
    keys = [("general.architecture", "clip" if kind == "mmproj" else "llama"), ("general.type", kind)]
    path = write_gguf(tmp_path / f"{kind}-F16.gguf", keys, [Tensor("t", (32,), bytes(128))])
    ended = cli.here("run", path, "Hi")
    assert (ended.status, ended.out) == (4, b"")
    assert says in ended.err


# containers/ramalama#2181, abetlen/llama-cpp-python#1341 and #1938: one part of a set is taken for all of it
def test_an_unfinished_set_names_the_part(cli: Cli, hub: Path, content: bytes) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-{no:05d}-of-00003.gguf" for no in (1, 2, 3)]
    fill_cache(hub, "user/repo", {names[0]: content, names[2]: content})
    break_off(hub, "user/repo", names[1], b"begun", 4096)
    for command in ("run", "chat"):
        ended = cli.here(command, "user/repo:Q4_K_M", stdin=b"Hi")
        assert (ended.status, ended.out) == (3, b"")
        assert names[1] in ended.err
        assert "llmrun pull user/repo:Q4_K_M" in ended.err


# ggml-org/llama.cpp#5802, LostRuins/koboldcpp#519, lmstudio-ai/lmstudio-bug-tracker#2231: odd characters
@pytest.mark.parametrize(
    "name",
    [
        "My Модель (v2) 模型.Q4_1.gguf",
        "My Модель (v2) 模型/My Модель (v2) 模型.Q4_1.gguf",
        "co:lon.gguf",
        "user/repo:Q8_0.gguf",
        "user/repo:Q8_0",
        "smollm2-135m",
        "'quoted' \"twice\" $HOME *.gguf",
    ],
)
def test_any_file_name_works(cli: Cli, content: bytes, name: str) -> None:
    path = cli.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for ref in (name, f"./{name}", path):
        ended = cli.here("run", ref, "Hi", *GREEDY, "--json")
        assert (ended.status, ended.document["text"]) == (0, ANSWER)
        assert ended.document["model"]["ref"] == str(ref)


def test_a_file_name_may_begin_with_a_dash(cli: Cli, content: bytes) -> None:
    (cli.folder / "-model.gguf").write_bytes(content)
    for words in (("--", "-model.gguf", "Hi"), ("./-model.gguf", "Hi")):
        assert cli.here("run", *GREEDY, *words).text == ANSWER


def test_odd_names_survive_the_hub_and_the_list(online: Online, content: bytes) -> None:
    path = "My Модель (v2) 模型/ünd so.Q4_1.gguf"
    online.server.add(path, content)
    pulled = online("pull", f"{REPO}:q4_1", "--json").document
    assert pulled["files"][0]["path"] == path
    (model,) = [one for one in online("list", "--json").document["models"] if one["repo"]]
    assert model["paths"] == [pulled["path"]]
    for ref in (model["name"], model["paths"][0]):
        assert online("run", ref, "Hi", *GREEDY).text == ANSWER
    assert online("rm", model["name"], "--yes").status == 0
