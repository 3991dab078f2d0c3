"""Download throughput: llmrun, which verifies what it fetches, against the Hub client's `hf_hub_download`.

    python -m benchmarks.download [--size-mib 512] [--rounds 5] [--folder DIR]

A Hub on loopback (the tests' own, which sends files by `sendfile` from a process of its own) offers one file.
Each side fetches it in turns, in a fresh process, into an empty cache below DIR; the client over plain HTTP
(`HF_HUB_DISABLE_XET=1`). The time is that of the download alone, without process start and listing. llmrun
hashes every byte and flushes the file to the disk before it counts as there; the client does neither. The
same file's `hashlib.sha256` rate is printed as the ceiling of one core. Exit status: 0 llmrun reaches 0.9 of
the client's throughput, 1 it does not, 2 something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine
from benchmarks.machine import CannotRun, say
from benchmarks.stats import ratio

OURS, PEER = "llmrun", "hf_hub_download"
TARGET = 0.9
REPO, FILE = "maker/bench-GGUF", "bench-Q4_K_M.gguf"
SERVER = """
import sys
from pathlib import Path
from tests.support.hub import LoopbackHub
hub = LoopbackHub()
hub.add(sys.argv[2], Path(sys.argv[3]), repo=sys.argv[1])
print(hub.endpoint, flush=True)
sys.stdin.read()
"""
CLIENTS = {
    OURS: """
import sys, time
from llmrun.store.download import download
from llmrun.store.hub import Hub
hub = Hub()
listing = hub.listing(sys.argv[1])
began = time.perf_counter()
for _ in download(hub, listing, listing.files, connections=int(sys.argv[3])):
    pass
print(time.perf_counter() - began)
""",
    PEER: """
import sys, time
from huggingface_hub import HfApi, hf_hub_download
HfApi().model_info(sys.argv[1])
began = time.perf_counter()
hf_hub_download(sys.argv[1], sys.argv[2])
print(time.perf_counter() - began)
""",
}


@contextmanager
def serving(source: Path) -> Iterator[str]:
    """The address of a Hub that offers `source`, served by a process of its own."""
    command = [sys.executable, "-c", SERVER, REPO, FILE, str(source)]
    with subprocess.Popen(
        command, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        if not endpoint:
            raise CannotRun("the Hub on loopback did not start")
        try:
            yield endpoint
        finally:
            server.communicate("")


def write_source(path: Path, size_mib: int) -> None:
    """A file of random blocks, each of them different."""
    block = os.urandom(1 << 20)
    with path.open("wb") as handle:
        for number in range(size_mib):
            handle.write(number.to_bytes(8, "big") + block[8:])


def fetch_seconds(name: str, endpoint: str, folder: Path, connections: int) -> float:
    """Time of one download into an empty cache. Raises CannotRun where it fails."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="cache-") as cache:
        environment = os.environ | {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_CACHE": cache,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        command = [sys.executable, "-c", CLIENTS[name], REPO, FILE, str(connections)]
        return float(machine.call(command, environment))


def digest_rate(path: Path) -> float:
    """Bytes a second of SHA-256 over the file, read from the page cache."""
    began = time.perf_counter()
    with path.open("rb") as handle:
        hashlib.file_digest(handle, "sha256")
    return path.stat().st_size / (time.perf_counter() - began)


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], float]:
    """Seconds of both sides, in turns, and the digest's rate in bytes a second."""
    source = folder / "source"
    write_source(source, arguments.size_mib)
    taken: dict[str, list[float]] = {OURS: [], PEER: []}
    with serving(source) as endpoint:
        for turn in range(arguments.rounds + 1):
            for name in (OURS, PEER) if turn % 2 else (PEER, OURS):
                taken_s = fetch_seconds(name, endpoint, folder, arguments.connections)
                if turn:  # the first round fills the page cache
                    taken[name].append(taken_s)
                    say(f"round {turn}: {name} {arguments.size_mib / taken_s:.0f} MiB/s")
    return taken, digest_rate(source)


def main() -> int:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description="Download throughput of llmrun and hf_hub_download.")
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the caches lie; default: the temporary folder")
    parser.add_argument("-o", "--output", type=Path, help="JSON file; default: in benchmarks/results")
    arguments = parser.parse_args()
    watch = machine.Watch()
    try:
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="llmrun-benchmark-") as folder:
            taken, digest = measure(arguments, Path(folder))
    except CannotRun as error:
        say(str(error))
        return 2
    record, disturbance = machine.provenance(1), watch.total()
    compared = ratio(taken[PEER], taken[OURS])
    print(f"download of {arguments.size_mib} MiB, {arguments.rounds} rounds, in turns, MiB/s of medians")
    machine.show_provenance(record)
    for name, times in taken.items():
        print(f"  {name:<16} {arguments.size_mib / statistics.median(times):7.0f}")
    print(f"  {'sha256, one core':<16} {digest / (1 << 20):7.0f}")
    print(
        f"  {OURS} reaches {compared.of_medians:.2f} of the client's throughput"
        f" (pairs {compared.paired_median:.2f}, {compared.paired_min:.2f} to {compared.paired_max:.2f};"
        f" target {TARGET})"
    )
    print(machine.busy_note(disturbance))
    document = {
        "benchmark": "download",
        "provenance": record,
        "size_mib": arguments.size_mib,
        "connections": arguments.connections,
        "seconds": taken,
        "sha256_bytes_per_s": digest,
        "ratio": compared.of_medians,
    }
    print(f"samples: {machine.write_result('download', document, arguments.output)}")
    return 0 if compared.of_medians >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
