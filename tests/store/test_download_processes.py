"""Downloads in processes of their own: killed, interrupted, short of space, and two at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.store.hf_cache import cached_files, partial_files, repo_folder

from tests.support.fetching import contents, pull
from tests.support.hub import REPO, LoopbackHub
from tests.support.waiting import TIMEOUT_S, wait_until

SIZE = 4 << 20
CONTENT = random.Random(9).randbytes(SIZE)
CHILD = """
import sys
from llmrun.errors import LlmrunError
from llmrun.store.download import download
from llmrun.store.hub import Hub
hub = Hub()
listing = hub.listing(sys.argv[1])
print("begun", flush=True)
try:
    for event in download(hub, listing, listing.files):
        print(type(event).__name__, flush=True)
except LlmrunError as error:
    print(type(error).__name__, error.message, flush=True)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def server(server: LoopbackHub) -> LoopbackHub:
    server.add("m.gguf", CONTENT)
    return server


def child(server: LoopbackHub, *, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + CHILD, REPO]
    environment = os.environ | {"HF_ENDPOINT": server.endpoint, "HF_HUB_DOWNLOAD_TIMEOUT": f"{TIMEOUT_S:.0f}"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def steps(process: subprocess.Popen[str]) -> Iterator[str]:
    """Names of the events."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line.strip()


def stopped_midway(server: LoopbackHub, number: int) -> tuple[int, str]:
    """Send a signal to a download of which half has come; exit status and what it wrote to stderr."""
    server.faults.hold = threading.Event()
    with child(server) as process:
        wait_until(lambda: [partial.size_bytes for partial in partial_files(REPO)] == [SIZE // 2])
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    server.faults.hold.set()
    return process.returncode, errors


def test_a_killed_download_goes_on_where_it_was(server: LoopbackHub) -> None:
    status, _ = stopped_midway(server, signal.SIGKILL)
    assert status == -signal.SIGKILL
    (partial,) = partial_files(REPO)
    assert (partial.path, partial.size_bytes, partial.total_bytes) == ("m.gguf", SIZE // 2, SIZE)
    assert partial.file.read_bytes() == CONTENT[: partial.size_bytes]
    assert {path.name for path in repo_folder(REPO).iterdir()} == {"blobs"}
    asked = len(server.bodies())
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert [request.first_byte for request in server.bodies()[asked:]] == [partial.size_bytes]
    assert partial_files(REPO) == ()


def test_ctrl_c_keeps_what_came(server: LoopbackHub) -> None:
    status, errors = stopped_midway(server, signal.SIGINT)
    assert status == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    assert "Exception" not in errors
    (partial,) = partial_files(REPO)
    assert partial.size_bytes == SIZE // 2
    asked = len(server.bodies())
    assert contents(pull(server)) == {"m.gguf": CONTENT}
    assert server.bodies()[asked].first_byte == partial.size_bytes


def test_two_processes_fetch_a_file_once(server: LoopbackHub) -> None:
    server.faults.hold = threading.Event()
    with child(server) as first:
        wait_until(lambda: bool(server.bodies()))
        with child(server) as second:
            assert "FileWaiting" in steps(second)
            server.faults.hold.set()
            outputs = [process.communicate(timeout=TIMEOUT_S) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert all("Downloaded" in output for output, _ in outputs)
    assert server.sent() == SIZE
    assert cached_files(REPO)[0].file.read_bytes() == CONTENT


def test_a_process_waits_for_the_hubs_client_too(server: LoopbackHub) -> None:
    digest = server.repos[REPO]["m.gguf"].sha256
    lock = repo_folder(REPO).parent / ".locks" / repo_folder(REPO).name / f"{digest}.lock"
    lock.parent.mkdir(parents=True)
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    with child(server) as process:
        with WeakFileLock(lock):
            assert "FileWaiting" in steps(process)
            assert not server.bodies()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert server.sent() == SIZE


def test_a_limit_on_the_disk_that_is_met_midway(server: LoopbackHub, tmp_path: Path) -> None:
    quota = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({SIZE // 2}, {SIZE // 2}))\n"
    with child(server, before=quota) as process:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 10, errors
    assert str(tmp_path / "hub") in output.splitlines()[-1]
    assert not list((repo_folder(REPO) / "blobs").iterdir())
    assert contents(pull(server)) == {"m.gguf": CONTENT}
