"""Public bug reports on downloads: resuming, half a model, full disks, split sets, offline use, removal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.support.archs import write_split
from tests.support.cli import Cli
from tests.support.hub import REPO
from tests.support.pulling import Online
from tests.support.puppet import write_puppet
from tests.support.waiting import TIMEOUT_S, wait_until

GREEDY = ("--temp", "0", "-n", "4", "-c", "128")
ANSWER = "a short answer"
NAME = "m-Q4_K_M.gguf"
MODEL = f"{REPO}:Q4_K_M"


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_puppet(tmp_path / "short.gguf", ["a ", "short ", "answer"]).path.read_bytes()


def models(online: Online) -> list[dict[str, object]]:
    """What `list` knows of the Hub's cache."""
    ended = online("list", "--json")
    assert (ended.status, ended.err) == (0, "")
    return [one for one in ended.document["models"] if one["source"] == "hub"]


def half_pull(online: Online, how: str) -> None:
    """A pull in a process of its own that ends when half of the file is on the disk."""
    half = online.server.repos[REPO][NAME].size // 2
    online.server.faults.hold = threading.Event()
    running = online.cli.start("pull", MODEL, env={"HF_HUB_DOWNLOAD_TIMEOUT": f"{TIMEOUT_S:.0f}"})
    wait_until(lambda: [part.stat().st_size for part in online.partial()] == [half])
    if how == "kill":
        running.process.send_signal(signal.SIGKILL)
        running.ended()
    else:
        ended = running.interrupt()
        assert ended.status == 130
        assert "kept" in ended.err
    online.server.faults.hold.set()


# huggingface/huggingface_hub#4196 and PR#4306, antirez/ds4 PR#1048, ggml-org/llama.cpp#12207: a pull starts
# again from zero, or appends at the wrong place
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("server", ["honest", "ignores ranges", "has another file now"])
def test_an_interrupted_pull_goes_on(online: Online, content: bytes, how: str, server: str) -> None:
    online.server.add(NAME, content)
    half_pull(online, how)
    (part,) = online.partial()
    kept = part.stat().st_size
    online.server.log.clear()
    online.server.faults.no_range = server == "ignores ranges"
    if server == "has another file now":
        content += b"more"
        online.server.add(NAME, content)
    again = online("pull", MODEL, "--json")
    assert again.status == 0
    asked = online.server.bodies()[0]
    assert asked.first_byte == (0 if server == "has another file now" else kept)
    (file,) = again.document["files"]
    assert Path(file["file"]).read_bytes() == content
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    if server == "honest":
        assert file["received_bytes"] == len(content) - kept
    assert online.partial() == []


def test_the_help_says_that_downloads_go_on(cli: Cli) -> None:
    assert "goes on where it was" in " ".join(cli.here("pull", "--help").text.split())


# ROCm/FastFlowLM#461, simonw/llm#266, ngxson/wllama#268: a half-downloaded model is listed and loaded
def test_half_a_model_is_none(online: Online, content: bytes) -> None:
    online.server.add(NAME, content)
    half_pull(online, "kill")
    (half,) = models(online)
    assert (half["complete"], half["total_bytes"]) == (False, len(content))
    (part,) = online.partial()
    assert half["size_bytes"] == part.stat().st_size
    assert "partial" in online("list").text
    for command in ("run", "chat"):
        ended = online.cli.here(command, MODEL, stdin=b"Hi")
        assert (ended.status, ended.out) == (3, b"")
        assert f"llmrun pull {MODEL}" in ended.err
    assert online("show", MODEL, "--json").document["remote"]["repo"] == REPO
    assert online("pull", MODEL).status == 0
    (whole,) = models(online)
    assert (whole["complete"], whole["size_bytes"]) == (True, len(content))
    assert online("run", MODEL, "Hi", *GREEDY).text == ANSWER


def test_the_remains_of_a_pull_can_be_removed(online: Online, content: bytes) -> None:
    online.server.add(NAME, content)
    half_pull(online, "kill")
    ended = online("rm", MODEL, "--yes")
    assert ended.status == 0
    assert "freed" in ended.text
    assert (online.taken_bytes(), online.partial(), models(online)) == (0, [], [])


# huggingface/huggingface_hub#2742 and #1551: a full disk is only warned about
def test_what_cannot_fit_on_the_disk_is_refused_before_the_first_byte(online: Online) -> None:
    online.server.add(NAME, b"x").size = 5 << 40
    ended = online("pull", MODEL)
    assert ended.status == 10
    assert "5.00 TiB" in ended.err
    assert "free" in ended.err
    assert online.server.bodies() == []


def test_a_disk_that_fills_up_is_named_and_left_clean(online: Online, content: bytes) -> None:
    online.server.add(NAME, content)
    limited = ("sh", "-c", 'ulimit -f 1000; exec "$@"', "sh")
    ended = online.cli("pull", MODEL, wrapper=limited)
    assert ended.status == 10
    assert str(online.cache) in ended.err
    assert online.partial() == []


# containers/ramalama#2181, abetlen/llama-cpp-python#1341 and #1938: one part of a set, or doubled folders
def test_a_split_model_in_a_folder_is_one_model(online: Online, tmp_path: Path, content: bytes) -> None:
    parts = write_split(tmp_path, "llama", 3)
    paths = [f"Q4_K_M/m-Q4_K_M-{no:05d}-of-00003.gguf" for no in (1, 2, 3)]
    for path, part in zip(paths, parts, strict=True):
        online.server.add(path, part)
    online.server.add("m-Q8_0.gguf", content)
    online.server.add("README.md", b"words", large=False)
    pulled = online("pull", MODEL, "--json").document
    size_bytes = sum(part.stat().st_size for part in parts)
    assert ([file["path"] for file in pulled["files"]], pulled["size_bytes"]) == (paths, size_bytes)
    assert {request.path.rpartition("/")[2] for request in online.server.bodies()} == {
        path.rpartition("/")[2] for path in paths
    }
    (model,) = models(online)
    assert (model["name"], model["size_bytes"]) == (MODEL, size_bytes)
    online.offline()
    shown = online("show", MODEL, "--json").document
    assert [Path(part["path"]).name for part in shown["file"]["parts"]] == [Path(p).name for p in paths]
    assert online("rm", MODEL, "--yes").status == 0
    assert online.taken_bytes() == 0


# ggml-org/llama.cpp#13128 and PR#13202, simonw/llm#188: a model on disk needs the network
@pytest.mark.parametrize("trouble", ["stopped", "silent", "offline"])
def test_what_is_on_disk_needs_no_network(online: Online, content: bytes, trouble: str) -> None:
    online.server.add(NAME, content)
    assert online("pull", MODEL).status == 0
    env = {}
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        if trouble == "stopped":
            online.offline()
        elif trouble == "silent":
            env = {
                "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            }
        else:
            env = {"HF_HUB_OFFLINE": "1"}
        online.server.log.clear()
        for arguments in (["list"], ["show", MODEL], ["vram", REPO], ["run", MODEL, "Hi", *GREEDY]):
            ended = online(*arguments, **env)
            assert (ended.status, ended.err) == (0, "")
        assert online.server.log == []
        pull = online.cli("pull", f"{REPO}:Q8_0", env=env)
        assert pull.status == 8
        assert len(pull.err.splitlines()) == 2


# ollama/ollama#8373 and #12221, llmmanorg/llmman#283: rm leaves the gigabytes, or takes what others need
def test_shared_data_goes_with_its_last_user(online: Online, content: bytes) -> None:
    online.server.add("a-Q4_K_M.gguf", content)
    online.server.add("b-Q8_0.gguf", content)
    online("pull", f"{REPO}:Q4_K_M")
    online("pull", f"{REPO}:Q8_0")
    assert online.taken_bytes() < 1.1 * len(content)
    first = online("rm", f"{REPO}:Q4_K_M", "--yes")
    assert "0 B freed" in first.text
    assert "stay" in first.text
    assert online("run", f"{REPO}:Q8_0", "Hi", *GREEDY).text == ANSWER
    assert online("rm", f"{REPO}:Q8_0", "--yes").status == 0
    assert online.taken_bytes() == 0


def test_an_updated_model_goes_with_its_old_content(online: Online, content: bytes) -> None:
    online.server.add(NAME, content)
    online("pull", MODEL)
    online.server.add(NAME, content + b"update")
    online("pull", MODEL)
    assert online.taken_bytes() > 2 * len(content)
    assert len(models(online)) == 1
    assert online("rm", MODEL, "--yes").status == 0
    assert online.taken_bytes() == 0


def test_files_given_by_path_are_never_removed(online: Online, content: bytes) -> None:
    online.server.add(NAME, content)
    pulled = online("pull", MODEL, "--json").document
    own = online.cli.folder / "own.gguf"
    own.write_bytes(content)
    for path in (own, "own.gguf", pulled["path"]):
        ended = online("rm", path, "--yes")
        assert (ended.status, ended.out) == (2, b"")
        assert "path" in ended.err
    assert own.exists()
    assert Path(pulled["path"]).exists()


def test_other_programs_share_the_files(online: Online, content: bytes) -> None:
    from huggingface_hub import hf_hub_download

    online.server.add(NAME, content)
    online.server.add("m-Q8_0.gguf", content + b"8")
    theirs = hf_hub_download(REPO, "m-Q8_0.gguf", endpoint=online.server.endpoint, cache_dir=online.cache)
    assert {model["name"] for model in models(online)} == {f"{REPO}:Q8_0"}
    assert online("pull", f"{REPO}:Q8_0", "--json").document["received_bytes"] == 0
    ours = online("pull", MODEL, "--json").document["path"]
    before = len(online.server.bodies())
    again = hf_hub_download(REPO, NAME, endpoint=online.server.endpoint, cache_dir=online.cache)
    assert (os.path.realpath(again), len(online.server.bodies())) == (os.path.realpath(ours), before)
    assert online("rm", REPO, "--yes").status == 0
    assert not Path(theirs).exists()
    assert json.loads(online("list", "--json").text)["models"]
