"""`llmrun pull` and what other commands do with models that are on the Hub alone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmrun.gguf.reader import read_header
from llmrun.units import format_bytes

from tests.support.archs import write_arch, write_split
from tests.support.cli import Ended
from tests.support.gguf_writer import Tensor, TensorType, Value, write_gguf
from tests.support.hub import REPO, TOKEN
from tests.support.models import gemma_path, smollm2_path
from tests.support.pulling import Online
from tests.support.talk import Talk
from tests.support.waiting import TIMEOUT_S

GREEDY = ("--temp", "0", "-n", "4", "-c", "128")
ANSWER = "a short answer"
QUANTS = {
    "Q2_K": TensorType.Q2_K,
    "Q4_K_M": TensorType.Q4_K,
    "Q6_K": TensorType.Q6_K,
    "Q8_0": TensorType.Q8_0,
    "BF16": TensorType.BF16,
}
ESCAPE, RETURN = b"\x1b", b"\r"


@pytest.fixture
def content(model: Path) -> bytes:
    return model.read_bytes()


@pytest.fixture
def family(online: Online, tmp_path: Path) -> dict[str, Path]:
    """A model in five quantizations; three of them smaller than half of the largest."""
    made = {}
    for quant, kind in QUANTS.items():
        made[quant] = write_arch(
            tmp_path / f"m-{quant}.gguf",
            "llama",
            vocabulary=True,
            weights=kind,
            n_layer=4,
            n_embd=512,
            n_ff=1024,
            n_head=8,
            n_head_kv=4,
            head_size=64,
        )
        online.server.add(made[quant].name, made[quant])
    return made


def offers(online: Online, *arguments: str) -> dict[str, Any]:
    ended = online("pull", REPO, "--list", "--json", *arguments)
    assert ended.status == 0
    return ended.document


def by_quant(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["quant"]: one for one in document["quants"]}


class TestChoosing:
    def test_the_table_has_every_quantization_at_its_exact_size(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        document = offers(online)
        found = by_quant(document)
        assert list(found) == list(QUANTS)
        for quant, path in family.items():
            assert found[quant]["size_bytes"] == path.stat().st_size
            weights_bytes = sum(tensor.size_bytes for tensor in read_header(path).tensors)
            bits = 8 * weights_bytes / document["n_params"]
            assert found[quant]["bits_per_weight"] == pytest.approx(bits, rel=1e-3)
        assert online.server.sent() <= 1.1 * max(
            read_header(path).data_offset for path in family.values()
        ) or online.server.sent() <= (128 << 10)

    def test_one_header_a_repository_is_read_once(self, online: Online, family: dict[str, Path]) -> None:
        assert offers(online)["received_bytes"] > 0
        bodies = len(online.server.bodies())
        assert bodies <= 2
        assert offers(online, "-c", "4096")["received_bytes"] == 0
        assert len(online.server.bodies()) == bodies

    def test_what_the_table_cost_is_told(self, online: Online, family: dict[str, Path]) -> None:
        first, second = (online("pull", REPO, "--list").text for _ in range(2))
        assert f"{format_bytes(online.server.sent())} received" in first
        assert "received" not in second

    def test_memory_of_the_others_follows_from_the_one_header(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        """The law behind the table: what it says of each file is what `vram` says of that file."""
        found = by_quant(offers(online, "-c", "2048"))
        for quant, path in family.items():
            exact = online("vram", path, "-c", "2048", "--json").document
            assert found[quant]["sum_bytes"] == pytest.approx(exact["totals"]["sum_bytes"], rel=0.02)
        assert offers(online, "-c", "2048")["kv_bytes"] == exact["totals"]["kv_bytes"]

    def test_the_context_and_its_types_count(self, online: Online, family: dict[str, Path]) -> None:
        short, long = offers(online, "-c", "1024"), offers(online, "-c", "4096")
        small = offers(online, "-c", "4096", "--kv-type", "q8_0")
        assert long["kv_bytes"] == 4 * short["kv_bytes"]
        assert small["kv_bytes"] < long["kv_bytes"]

    @pytest.mark.parametrize(
        ("gpu", "fits", "marked"),
        [
            ("1GiB", "gpu", "Q8_0"),
            ("20MiB", "part", "Q6_K"),
            ("16MiB", "part", "Q4_K_M"),
            ("14MiB", "part", "Q4_K_M"),
        ],
    )
    def test_what_fits_on_a_gpu(
        self, online: Online, family: dict[str, Path], gpu: str, fits: str, marked: str
    ) -> None:
        memory = ("--device", f"G={gpu}", "--device", "CPU=8GiB", "--reserve", "0", "-c", "512")
        document = offers(online, *memory)
        assert document["marked"] == marked
        assert by_quant(document)["BF16"]["fits"] == fits

    def test_without_a_gpu_the_usual_one_is_marked(self, online: Online, family: dict[str, Path]) -> None:
        document = offers(online, "--device", "CPU=8GiB", "-c", "512")
        assert {one["fits"] for one in document["quants"]} == {"cpu"}
        assert document["marked"] == "Q4_K_M"

    def test_nothing_is_taken_unasked_where_nothing_fits(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        document = offers(online, "--device", "CPU=1MiB")
        assert (document["marked"], {one["fits"] for one in document["quants"]}) == (None, {"none"})
        ended = online("pull", REPO, "--device", "CPU=1MiB")
        assert ended.status == 5
        assert online("pull", REPO, "--device", "CPU=1MiB", "--quant", "Q2_K").status == 0

    def test_what_was_begun_is_marked_while_it_fits(self, online: Online, family: dict[str, Path]) -> None:
        name, content = "m-Q6_K.gguf", family["Q6_K"].read_bytes()
        blobs = online.cache / "models--maker--tiny-GGUF" / "blobs"
        blobs.mkdir(parents=True)
        blob = online.server.repos[REPO][name].sha256
        (blobs / f"{blob}.incomplete").write_bytes(content[: len(content) // 2])
        (blobs / f"{blob}.incomplete.json").write_text(json.dumps({"path": name, "size_bytes": len(content)}))
        assert offers(online, "--device", "CPU=1MiB")["marked"] is None
        assert offers(online, "--device", "CPU=8GiB", "-c", "512")["marked"] == "Q6_K"
        assert f"llmrun pull {REPO}:Q6_K" in online("run", REPO, "Hi").err
        assert online("pull", REPO, "--json").document["quant"] == "Q6_K"
        assert offers(online, "--device", "CPU=8GiB", "-c", "512")["marked"] == "Q4_K_M"

    @pytest.mark.parametrize("flags", [(), ("--yes",)])
    def test_off_a_terminal_the_marked_one_is_taken(
        self, online: Online, family: dict[str, Path], flags: tuple[str, ...]
    ) -> None:
        ended = online("pull", REPO, "--json", "--device", "CPU=8GiB", "-c", "512", *flags)
        assert ended.document["quant"] == "Q4_K_M"

    def test_a_list_fetches_nothing_and_says_what_is_here(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        online("pull", REPO, "--quant", "Q6_K", "-q")
        found = by_quant(offers(online))
        assert found["Q6_K"]["here_bytes"] == family["Q6_K"].stat().st_size
        assert found["Q8_0"]["here_bytes"] == 0
        assert "here" in online("pull", REPO, "--list").text

    def test_what_lies_here_without_links_is_here(self, online: Online, family: dict[str, Path]) -> None:
        place = Path(online("pull", REPO, "--quant", "Q6_K", "--json").document["path"])
        place.resolve().rename(place)
        found = by_quant(offers(online))
        assert found["Q6_K"]["here_bytes"] == family["Q6_K"].stat().st_size
        assert found["Q8_0"]["here_bytes"] == 0

    def test_names_and_numbers_out_of_the_table_are_refused(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        assert online("pull", REPO, "--quant", "Q3_K_M").status == 3
        assert online("pull", f"{REPO}:Q4_K_M", "--quant", "Q8_0").status == 2
        assert online("pull", "./m-Q4_K_M.gguf").status == 2
        assert online("pull", REPO, "--kv-type", "q7").status == 2


class TestNames:
    """What the catalogue knows, without any network."""

    def test_every_name_is_listed_and_can_be_typed(self, online: Online) -> None:
        models = online("pull", "--list", "--json").document["models"]
        names = [model["name"] for model in models]
        assert [line.split("\t")[0] for line in online("pull", "--list").text.splitlines()] == names
        assert all(model["source"] and model["purpose"] and model["about_bytes"] for model in models)
        (known,) = (model for model in models if model["name"] == "smollm2-135m")
        assert known["about_bytes"] == smollm2_path().stat().st_size
        assert online.server.log == []

    def test_the_users_own_are_among_them(self, online: Online) -> None:
        online.cli.config_dir.mkdir(parents=True)
        (online.cli.config_dir / "models.yaml").write_text("models:\n  house:\n    hub: a/b\n")
        (mine,) = (m for m in online("pull", "--list", "--json").document["models"] if m["name"] == "house")
        assert (mine["source"], mine["quant"], mine["about_bytes"], mine["context"]) == (
            "a/b",
            "",
            None,
            None,
        )

    def test_without_a_name_nothing_is_fetched(self, online: Online) -> None:
        ended = online("pull")
        assert (ended.status, "pull --list" in ended.err) == (2, True)

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_the_names_fit_the_terminal(self, online: Online, columns: int) -> None:
        with online.cli.terminal("pull", "--list", columns=columns, lines=200) as terminal:
            assert terminal.ended() == 0
            rows = [line for line in terminal.display if line.startswith("phi-4 ")]
        assert len(rows) == 1
        assert "GiB" in rows[0]


class TestTerminal:
    @pytest.mark.parametrize("command", [("pull", REPO), ("run", REPO, "Hi"), ("vram", REPO)])
    def test_a_silent_hub_is_told_and_ctrl_c_leaves_it(
        self, online: Online, command: tuple[str, ...]
    ) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            host = f"127.0.0.1:{silent.getsockname()[1]}"
            online.cli.env.update(HF_ENDPOINT=f"http://{host}", HF_HUB_DOWNLOAD_TIMEOUT=f"{TIMEOUT_S:.0f}")
            with online.cli.terminal(*command) as terminal:
                terminal.wait_for(f"waiting for {host}")
                terminal.send("\x03")
                assert terminal.ended() == 130
                assert not [line for line in terminal.display if "waiting" in line]

    @pytest.mark.parametrize(("answer", "taken"), [("\r", "Q4_K_M"), ("1\r", "Q2_K"), ("q8_0\r", "Q8_0")])
    def test_enter_a_number_or_a_name(
        self, online: Online, family: dict[str, Path], answer: str, taken: str
    ) -> None:
        with online.cli.terminal("pull", REPO, "--device", "CPU=8GiB", "-c", "512") as terminal:
            terminal.wait_for("Number or name")
            terminal.send(answer)
            assert terminal.ended() == 0
            assert f"chat {REPO}:{taken}" in terminal.text
        assert [one["quant"] for one in here(online)] == [taken]

    def test_what_is_not_in_the_table_is_asked_again(self, online: Online, family: dict[str, Path]) -> None:
        with online.cli.terminal("pull", REPO, "--device", "CPU=8GiB", "-c", "512") as terminal:
            place = terminal.wait_for("Number or name")
            for wrong in ("9", "Q4", "\x1b[31m"):
                terminal.send(f"{wrong}\r")
                place = terminal.wait_for("Number or name", after=place)
            terminal.send("Q2_K\r")
            assert terminal.ended() == 0

    @pytest.mark.parametrize("keys", ["\x03", "\x04", "q\r"])
    def test_leaving_is_clean(self, online: Online, family: dict[str, Path], keys: str) -> None:
        with online.cli.terminal("pull", REPO, "--device", "CPU=8GiB", "-c", "512") as terminal:
            terminal.wait_for("Number or name")
            terminal.send(keys)
            assert terminal.ended() == 130
            assert terminal.modes == terminal.modes_before
        assert here(online) == []

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_progress_fits_and_goes_away(self, online: Online, content: bytes, columns: int) -> None:
        for no in (1, 2):
            online.server.add(f"a folder/a-name-Q8_0-{no:05d}-of-00002.gguf", content + bytes([no]))
        online.server.faults.hold = half_way = threading.Event()
        patient = {"HF_HUB_DOWNLOAD_TIMEOUT": f"{TIMEOUT_S:.0f}"}
        progress: list[str] = []

        def moving() -> bool:
            progress[:] = [line for line in terminal.display if line]
            return any("%" in line for line in progress)

        with online.cli.terminal("pull", f"{REPO}:Q8_0", columns=columns, env=patient) as terminal:
            terminal.wait_until(moving, "progress")
            half_way.set()
            assert terminal.ended() == 0
            lines = "\n".join(line for line in terminal.display if line)
            frames = terminal.text
        assert "all files" in frames
        assert "/s" in frames
        assert "%" not in lines
        assert "all files" not in lines
        assert len(progress) <= 6
        assert lines.replace("\n", "").count("verified") == 2

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_the_table_fits(self, online: Online, family: dict[str, Path], columns: int) -> None:
        with online.cli.terminal("pull", REPO, "--list", columns=columns) as terminal:
            assert terminal.ended() == 0
            rows = [line for line in terminal.display if any(f" {quant} " in line for quant in QUANTS)]
        assert len(rows) == len(QUANTS)
        assert all("iB" in row for row in rows)

    @pytest.mark.parametrize(("answer", "status"), [("\r", 0), ("n\r", 3), ("\x04", 3), ("\x03", 130)])
    def test_run_offers_the_pull(self, online: Online, content: bytes, answer: str, status: int) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        with online.cli.terminal("run", REPO, "Hi", *GREEDY) as terminal:
            terminal.wait_for("[Y/n]")
            terminal.send(answer)
            assert terminal.ended() == status
            assert (ANSWER in terminal.text) == (status == 0)
        assert bool(here(online)) == (status == 0)

    def test_chat_offers_the_pull(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        with online.cli.terminal("chat", REPO, "-c", "128") as terminal:
            terminal.wait_for("[Y/n]")
            terminal.send("\r")
            terminal.wait_for_prompt()
            terminal.send("\x04")
            assert terminal.ended() == 0


def here(online: Online) -> list[dict[str, Any]]:
    return [one for one in online("list", "--json").document["models"] if one["source"] == "hub"]


class TestPipes:
    def test_a_log_gets_a_line_a_file(self, online: Online, tmp_path: Path) -> None:
        for no, part in enumerate(write_split(tmp_path, "llama", 2), 1):
            online.server.add(f"m-Q8_0-{no:05d}-of-00002.gguf", part)
        ended = online.cli("pull", REPO)
        assert (ended.status, ended.out) == (0, b"")
        assert len(ended.err.splitlines()) == 2 + 1
        assert ESCAPE not in ended.err.encode()
        assert RETURN not in ended.err.encode()

    def test_quiet_says_nothing(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        ended = online("pull", REPO, "-q")
        assert (ended.status, ended.out, ended.err) == (0, b"", "")

    def test_json_is_the_whole_of_stdout(self, online: Online, content: bytes) -> None:
        stored = online.server.add("m-Q4_K_M.gguf", content)
        ended = online("pull", REPO, "--json")
        document = ended.document
        (file,) = document["files"]
        assert document["schema"] == "llmrun.pull/1"
        assert (document["repo"], document["commit"]) == (REPO, online.server.commit())
        assert (file["sha256"], file["verified"]) == (stored.sha256, "sha256")
        assert file["size_bytes"] == file["received_bytes"] == document["size_bytes"] == len(content)
        assert Path(document["path"]).read_bytes() == content
        assert online("pull", REPO, "--json").document["received_bytes"] == 0

    def test_the_line_at_the_end_runs_the_model(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        ended = online("pull", REPO)
        words = ended.err.splitlines()[-1].partition("llmrun ")[2].split()
        assert online.cli.here(*words, *GREEDY, stdin=b"Hi").text == ANSWER

    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_a_flag_fetches_what_is_missing(self, online: Online, content: bytes, command: str) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        ended = online.cli.here(command, REPO, *GREEDY, "--pull", stdin=b"Hi")
        assert (ended.status, ended.text) == (0, ANSWER)
        again = online.cli.here(command, REPO, *GREEDY, "--pull", stdin=b"Hi")
        assert (again.text, again.err) == (ANSWER, "")

    def test_what_generates_no_text_is_told(self, online: Online, tmp_path: Path) -> None:
        keys: list[tuple[str, Value]] = [("general.architecture", "bert")]
        path = write_gguf(tmp_path / "embed-Q8_0.gguf", keys, [Tensor("t", (32,), bytes(128))])
        online.server.add(path.name, path)
        assert "embedding" in online("pull", REPO, "--list").text
        assert "embedding" in offers(online)["kind"]
        pulled = online("pull", REPO)
        assert (pulled.status, "embedding" in pulled.err, "chat" in pulled.err) == (0, True, False)


class TestRefusals:
    def test_what_the_hub_refuses(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        assert online("pull", "maker/absent").status == 3
        assert online("pull", REPO, "--revision", "v9").status == 3
        online.server.gated.add(REPO)
        gated = online("pull", f"{REPO}:Q4_K_M")
        assert (gated.status, "gated" in gated.err) == (8, True)
        online.server.gated.clear()
        wrong = online("pull", f"{REPO}:Q4_K_M", HF_TOKEN="hf_wrong")
        assert (wrong.status, "hf_wrong" in wrong.err) == (8, False)
        assert online("pull", f"{REPO}:Q4_K_M", HF_TOKEN=TOKEN).status == 0

    def test_a_hub_that_asks_to_wait_is_given_time(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        online.server.faults.statuses = [("/api/", 429, {"Retry-After": "0"})] * 2
        assert online("pull", f"{REPO}:Q4_K_M").status == 0
        online.server.faults.statuses = [("/api/", 429, {"Retry-After": "600"})]
        ended = online("pull", f"{REPO}:Q4_K_M")
        assert (ended.status, "600 s" in ended.err) == (8, True)

    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_what_cannot_be_fetched_is_told_with_both_reasons(self, online: Online, command: str) -> None:
        online.offline()
        ended = online.cli.here(command, f"{REPO}:Q4_K_M", "--pull", stdin=b"Hi")
        assert (ended.status, ended.out) == (8, b"")
        assert "not on this machine" in ended.err
        assert "cannot be reached" in ended.err

    def test_an_error_is_one_document(self, online: Online) -> None:
        for arguments in (["pull", "maker/absent"], ["show", "maker/absent"], ["vram", "maker/absent"]):
            document = online(*arguments, "--json").document
            assert (document["schema"], document["exit_code"]) == ("llmrun.error/1", 3)

    def test_a_cache_folder_that_cannot_be(self, online: Online, content: bytes, tmp_path: Path) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        online.cli.env["HF_HUB_CACHE"] = str(tmp_path / ("x" * 300))
        statuses = {command: online(command, REPO).status for command in ("pull", "show", "rm")}
        assert statuses == {"pull": 10, "show": 0, "rm": 3}
        assert online("run", REPO, "Hi").status == 3
        assert online("list").status == 0

    def test_a_repository_without_models(self, online: Online) -> None:
        online.server.add("README.md", b"words", large=False)
        ended = online("pull", REPO)
        assert (ended.status, "GGUF" in ended.err) == (3, True)

    def test_a_set_that_lacks_a_part_there(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M-00001-of-00002.gguf", content)
        ended = online("pull", f"{REPO}:Q4_K_M")
        assert (ended.status, "00002-of-00002" in ended.err) == (3, True)
        assert online.server.bodies() == []


class TestHeadersAlone:
    @pytest.mark.parametrize("model", [smollm2_path, gemma_path])
    @pytest.mark.parametrize("flags", [(), ("--exact",)])
    def test_vram_is_the_same_before_and_after_the_pull(
        self, online: Online, model: Callable[[], Path], flags: tuple[str, ...]
    ) -> None:
        online.server.add("m-Q4_K_M.gguf", model())
        ref = f"{REPO}:Q4_K_M"
        memory = ("--device", "CPU=8GiB", "-c", "1024", "--json")
        before = self.without_place(online("vram", ref, *flags, *memory))
        moved = before.pop("remote")
        data_offset = read_header(model()).data_offset
        assert data_offset <= moved["received_bytes"] <= 1.1 * data_offset
        assert online.server.sent() <= 1.1 * data_offset
        online("pull", ref, "-q")
        after = self.without_place(online("vram", ref, *flags, *memory))
        assert after.pop("remote") is None
        assert before == after

    def without_place(self, ended: Ended) -> dict[str, Any]:
        assert ended.status == 0
        document = ended.document
        del document["model"]["path"]
        return document

    def test_show_is_the_same_before_and_after_the_pull(self, online: Online) -> None:
        online.server.add("m-Q4_1.gguf", smollm2_path())
        before = self.without_place(online("show", REPO, "--json", "--metadata", "--tensors"))
        assert before.pop("remote")["files"] == ["m-Q4_1.gguf"]
        online("pull", REPO, "-q")
        after = self.without_place(online("show", REPO, "--json", "--metadata", "--tensors"))
        assert after.pop("remote") is None
        for document in (before, after):
            del document["file"]["parts"][0]["path"]
        assert before == after

    def test_what_was_read_before_moves_no_bytes(self, online: Online, family: dict[str, Path]) -> None:
        ref = f"{REPO}:Q6_K"
        assert online("show", ref, "--json").document["remote"]["received_bytes"] > 0
        bodies = len(online.server.bodies())
        for command in ("show", "vram"):
            assert online(command, ref, "--json").document["remote"]["received_bytes"] == 0
        assert len(online.server.bodies()) == bodies

    def test_vram_of_a_repository_names_the_best_that_fits(
        self, online: Online, family: dict[str, Path]
    ) -> None:
        memory = ("--device", "G=1GiB", "--reserve", "0", "-c", "512")
        ended = online("vram", REPO, *memory, "--json")
        assert ended.document["remote"]["name"] == f"{REPO}:Q8_0"
        text = " ".join(online("vram", REPO, *memory).text.split())
        assert f"llmrun pull {REPO}:Q8_0" in text

    def test_verify_wants_the_file(self, online: Online, family: dict[str, Path]) -> None:
        ended = online("vram", f"{REPO}:Q4_K_M", "--verify")
        assert (ended.status, ended.out) == (3, b"")
        assert f"llmrun pull {REPO}:Q4_K_M" in ended.err

    def test_without_the_hub_both_reasons_are_told(self, online: Online) -> None:
        online.offline()
        for command in ("show", "vram"):
            ended = online(command, f"{REPO}:Q4_K_M")
            assert ended.status == 8
            assert "not on this machine" in ended.err
            assert "cannot be reached" in ended.err
            forbidden = online(command, f"{REPO}:Q4_K_M", HF_HUB_OFFLINE="1")
            assert forbidden.status == 8
            assert "HF_HUB_OFFLINE" in forbidden.err


class TestCatalogue:
    @pytest.fixture(autouse=True)
    def _house_model(self, online: Online, family: dict[str, Path]) -> None:
        online.cli.config_dir.mkdir(parents=True)
        (online.cli.config_dir / "models.yaml").write_text(
            f"models:\n  house:\n    hub: {REPO}\n    default: Q6_K\n"
        )

    def test_its_default_is_taken_if_it_fits(self, online: Online) -> None:
        ended = online("pull", "house", "--json", "--device", "CPU=8GiB", "-c", "512")
        assert (ended.document["name"], ended.document["quant"]) == ("house", "Q6_K")
        assert online("pull", "house:q2_k", "--json").document["name"] == "house:Q2_K"
        assert [one["name"] for one in here(online)] == ["house", "house:Q2_K"]
        for name in ("house", "house:Q2_K"):
            assert online("show", name, "--json").document["remote"] is None
            assert online("rm", name, "--yes").status == 0
        assert here(online) == []

    def test_a_name_is_shown_from_its_header(self, online: Online) -> None:
        document = online("vram", "house:q8_0", "-c", "512", "--json").document
        assert document["remote"]["name"] == "house:Q8_0"

    def test_what_comes_in_a_package_is_here(self, online: Online) -> None:
        ended = online("pull", "smollm2-135m", "--json")
        assert (ended.status, ended.document["repo"]) == (0, None)
        assert Path(ended.document["path"]) == smollm2_path()
        assert online.server.log == []


class TestChats:
    @pytest.mark.parametrize(
        ("answer", "told", "fetched"),
        [("n\r", "error:", 0), ("\x03", "interrupted", 0), ("y\r", "verified", 1)],
    )
    def test_another_model_is_offered_and_the_chat_goes_on(
        self, online: Online, content: bytes, model: Path, answer: str, told: str, fetched: int
    ) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        with online.cli.terminal("chat", model, "-c", "128") as terminal:
            talk = Talk(terminal)
            terminal.send(f"/model {REPO}\r")
            terminal.wait_for("[Y/n]")
            assert here(online) == []
            terminal.send(answer)
            terminal.wait_for(told)
            terminal.wait_until(lambda: ">>>" in terminal.text.rpartition(told)[2], "prompt")
            assert ANSWER in talk.says("still there?")
            talk.leaves()
        assert len(here(online)) == fetched

    def test_a_hub_that_cannot_be_asked_does_not_end_the_chat(self, online: Online, model: Path) -> None:
        online.offline()
        with online.cli.terminal("chat", model, "-c", "128") as terminal:
            talk = Talk(terminal)
            assert "cannot be reached" in talk.says(f"/model {REPO}")
            talk.leaves()

    def test_a_session_whose_model_is_gone_offers_it(self, online: Online, content: bytes) -> None:
        online.server.add("m-Q4_K_M.gguf", content)
        chat = ("chat", "--session", "kept", *GREEDY)
        assert online("pull", REPO).status == 0
        assert online.cli.here(*chat, REPO, stdin=b"one").status == 0
        assert online("rm", REPO, "--yes").status == 0
        assert online.cli.here(*chat, stdin=b"two").status == 3
        assert here(online) == []
        assert online.cli.here(*chat, "--pull", stdin=b"two").text.startswith(ANSWER)
